// Asks about a picture from a file, and prints the answer as it comes. Node 18 or newer, no packages:
//     node examples/picture.mjs picture.png "What is in this image?"
import { readFile } from "node:fs/promises";

const [file, question] = process.argv.slice(2);
if (!question) {
  console.error("usage: node picture.mjs PICTURE QUESTION");
  process.exit(2);
}
const base = process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:10001/v1";
const picture = (await readFile(file)).toString("base64");
const answer = await fetch(`${base}/chat/completions`, {
  method: "POST",
  headers: {
    "content-type": "application/json",
    authorization: `Bearer ${process.env.OPENAI_API_KEY ?? "none"}`,
  },
  body: JSON.stringify({
    stream: true,
    messages: [
      {
        role: "user",
        content: [
          { type: "image_url", image_url: { url: `data:image/png;base64,${picture}` } },
          { type: "text", text: question },
        ],
      },
    ],
  }),
});
if (!answer.ok) {
  console.error(`HTTP ${answer.status}: ${await answer.text()}`);
  process.exit(1);
}

// Server-sent events may be cut anywhere on their way: lines are looked at once they are whole.
let rest = "";
for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + piece).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const event = JSON.parse(line.slice(6));
    if (event.error) throw new Error(event.error.message);
    process.stdout.write(event.choices[0]?.delta.content ?? "");
  }
}
console.log();
