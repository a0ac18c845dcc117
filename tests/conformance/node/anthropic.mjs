import Anthropic from "@anthropic-ai/sdk";
import { run, spec, weather } from "./case.mjs";

const client = new Anthropic({ baseURL: spec.url, apiKey: spec.key, maxRetries: spec.retries });
const messages = [{ role: "user", content: spec.text }];
const body = { model: spec.model, max_tokens: 200, messages };
const tool = { name: spec.tool.name, description: spec.tool.description, input_schema: spec.tool.schema };

function text(answer) {
  return answer.content.filter((block) => block.type === "text").map((block) => block.text).join("");
}

function said(answer, pieces = 0) {
  const usage = answer.usage;
  return {
    text: text(answer),
    thoughts: answer.content.filter((block) => block.type === "thinking").map((block) => block.thinking).join(""),
    finish: answer.stop_reason,
    input_tokens: usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0),
    output_tokens: usage.output_tokens,
    pieces,
  };
}

async function looped(ask) {
  const turns = [...messages];
  for (let turn = 0; turn < 2; turn += 1) {
    const answer = await ask({ ...body, messages: turns, tools: [tool] });
    const calls = answer.content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) return text(answer);
    const content = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: weather(call.input) }));
    turns.push({ role: "assistant", content: answer.content }, { role: "user", content });
  }
  throw new Error("it called a tool again");
}

await run({
  async plain() {
    return said(await client.messages.create(body));
  },
  async stream() {
    let pieces = 0;
    const stream = client.messages.stream({ ...body, thinking: { type: "adaptive" } });
    stream.on("text", () => (pieces += 1)).on("thinking", () => (pieces += 1));
    return said(await stream.finalMessage(), pieces);
  },
  async tools() {
    return await looped((asked) => client.messages.create(asked));
  },
  async tools_stream() {
    return await looped((asked) => client.messages.stream(asked).finalMessage());
  },
  async schema() {
    const format = { type: "json_schema", schema: spec.city };
    return JSON.parse(text(await client.messages.create({ ...body, output_config: { format } })));
  },
  async forced_tool() {
    const city = { name: "City", input_schema: spec.city };
    const answer = await client.messages.create({ ...body, tools: [city], tool_choice: { type: "tool", name: "City" } });
    return answer.content.find((block) => block.type === "tool_use").input;
  },
  async count() {
    return (await client.messages.countTokens({ model: spec.model, messages })).input_tokens;
  },
});
