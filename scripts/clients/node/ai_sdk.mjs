// Vercel's AI SDK, over its providers for servers of OpenAI's form, for OpenAI's responses, and for
// Anthropic's messages.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { SITE, run } from "./report.mjs";

const base = { baseURL: `${SITE.url}/v1`, apiKey: "none" };
const model = createOpenAICompatible({
  ...base, name: "triptych", supportsStructuredOutputs: true,
})(SITE.model);
const how = { model, temperature: 0, maxRetries: 0 };
const Seen = z.object({ shape: z.enum(["circle", "square"]) });

async function text() {
  const answer = await generateText({ ...how, prompt: SITE.text });
  assert.equal(answer.text, SITE.answer);
  assert.equal(answer.finishReason, "stop");
  assert.ok(answer.usage.outputTokens > 0);
}

async function stream() {
  let said = "";
  for await (const piece of streamText({ ...how, prompt: SITE.text }).textStream) said += piece;
  assert.equal(said, SITE.answer);
}

async function object() {
  const { object } = await generateObject({ ...how, schema: Seen, prompt: SITE.text });
  assert.ok(Seen.safeParse(object).success);
}

async function tools() {
  const shapes = [];
  const seen = tool({
    description: "take a shape",
    inputSchema: Seen,
    execute: async ({ shape }) => {
      shapes.push(shape);
      return "noted";
    },
  });
  const answer = await generateText({
    ...how, prompt: SITE.text, tools: { seen }, toolChoice: "required",
  });
  assert.equal(answer.finishReason, "tool-calls");
  assert.equal(shapes.length, answer.toolCalls.length);
  assert.ok(shapes.every((shape) => ["circle", "square"].includes(shape)));
}

async function image() {
  const [message] = SITE.messages;
  const content = message.content.map((part) =>
    part.type === "text"
      ? { type: "text", text: part.text }
      : { type: "image", image: part.image_url.url },
  );
  const answer = await generateText({ ...how, messages: [{ role: "user", content }] });
  assert.equal(answer.text, SITE.seen);
}

async function responses() {
  const answer = await generateText({ ...how, model: createOpenAI(base)(SITE.model), prompt: SITE.text });
  assert.equal(answer.text, SITE.answer);
}

async function anthropic() {
  const answer = await generateText({
    ...how, model: createAnthropic(base)(SITE.model), prompt: SITE.text, maxOutputTokens: 100,
  });
  assert.equal(answer.text, SITE.answer);
}

await run(text, stream, object, tools, image, responses, anthropic);
