// The cases of the AI SDK, for any of its providers.
import { generateText, isStepCount, jsonSchema, Output, streamText, tool } from "ai";
import { run, spec, weather } from "./case.mjs";

function said(answer, usage, pieces = 0) {
  return {
    text: answer.text,
    thoughts: answer.reasoningText ?? "",
    finish: answer.finishReason,
    input_tokens: usage.inputTokens,
    output_tokens: usage.outputTokens,
    pieces,
  };
}

export async function cases(model) {
  const asked = { model, prompt: spec.text, maxRetries: spec.retries };
  const tools = {
    [spec.tool.name]: tool({
      description: spec.tool.description,
      inputSchema: jsonSchema(spec.tool.schema),
      execute: async (args) => weather(args),
    }),
  };
  const looping = { ...asked, tools, stopWhen: isStepCount(3) };

  async function streamed(options) {
    let pieces = 0;
    let failed;
    const answer = streamText({ ...options, onError: ({ error }) => (failed = error) });
    for await (const part of answer.fullStream) {
      if (part.type === "text-delta" || part.type === "reasoning-delta") pieces += 1;
    }
    if (failed) throw failed;
    const [text, reasoningText, finishReason, usage] = await Promise.all([
      answer.text,
      answer.reasoningText,
      answer.finishReason,
      answer.usage,
    ]);
    return said({ text, reasoningText, finishReason }, usage, pieces);
  }

  await run({
    async plain() {
      const answer = await generateText(asked);
      return said(answer, answer.usage);
    },
    stream: () => streamed(asked),
    async tools() {
      return (await generateText(looping)).text;
    },
    async tools_stream() {
      return (await streamed(looping)).text;
    },
    async schema() {
      return (await generateText({ ...asked, output: Output.object({ schema: jsonSchema(spec.city) }) })).output;
    },
  });
}
