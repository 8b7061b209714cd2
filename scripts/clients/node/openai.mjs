// `openai` for Node.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { SITE, run } from "./report.mjs";

const client = new OpenAI({ baseURL: `${SITE.url}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model: SITE.model, temperature: 0, messages: [{ role: "user", content: SITE.text }] };
const pictured = { model: SITE.model, temperature: 0, messages: SITE.messages };
const Seen = z.object({ shape: z.enum(["circle", "square"]) });

async function chat() {
  const answer = await client.chat.completions.create(asked);
  assert.equal(answer.choices[0].message.content, SITE.answer);
}

async function picture() {
  const answer = await client.chat.completions.create(pictured);
  assert.equal(answer.choices[0].message.content, SITE.seen);
}

async function stream() {
  const events = client.chat.completions.stream(asked);
  let text = "";
  for await (const chunk of events) text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, SITE.answer);
  assert.equal(await events.finalContent(), SITE.answer);
}

async function parsed() {
  const format = zodResponseFormat(Seen, "seen");
  const answer = await client.chat.completions.parse({ ...pictured, response_format: format });
  assert.ok(Seen.safeParse(answer.choices[0].message.parsed).success);
}

async function toolRunner() {
  const shapes = [];
  const runner = client.chat.completions.runTools({
    ...asked,
    tool_choice: { type: "function", function: { name: "seen" } },
    tools: [
      {
        type: "function",
        function: {
          name: "seen",
          parse: JSON.parse,
          function: ({ shape }) => shapes.push(shape) && "noted",
          parameters: {
            type: "object",
            properties: { shape: { enum: ["circle", "square"] } },
            required: ["shape"],
            additionalProperties: false,
          },
        },
      },
    ],
  });
  await runner.done();
  assert.equal(shapes.length, 1);
  assert.ok(["circle", "square"].includes(shapes[0]));
}

async function responses() {
  const answer = await client.responses.create({ model: SITE.model, input: SITE.text, temperature: 0 });
  assert.equal(answer.output_text, SITE.answer);
  let text = "";
  const events = await client.responses.create({
    model: SITE.model, input: SITE.text, temperature: 0, stream: true,
  });
  for await (const event of events) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, SITE.answer);
}

async function errors() {
  await assert.rejects(client.chat.completions.create({ ...asked, top_p: 7 }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.param, "top_p");
    return true;
  });
}

await run(chat, picture, stream, parsed, toolRunner, responses, errors);
