import OpenAI from "openai";
import { run, spec, weather } from "./case.mjs";

const client = new OpenAI({ baseURL: `${spec.url}/v1`, apiKey: spec.key, maxRetries: spec.retries });
const body = { model: spec.model, input: spec.text };
const tool = { type: "function", name: spec.tool.name, description: spec.tool.description, parameters: spec.tool.schema };

function said(answer, pieces = 0) {
  const reasoning = answer.output.filter((item) => item.type === "reasoning");
  return {
    text: answer.output_text,
    thoughts: reasoning.flatMap((item) => [...(item.content ?? []), ...item.summary]).map((one) => one.text).join(""),
    finish: answer.status,
    input_tokens: answer.usage.input_tokens,
    output_tokens: answer.usage.output_tokens,
    pieces,
  };
}

async function looped(ask) {
  const input = [{ role: "user", content: spec.text }];
  for (let turn = 0; turn < 2; turn += 1) {
    const answer = await ask({ ...body, input, tools: [tool] });
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (calls.length === 0) return answer.output_text;
    input.push(...answer.output);
    for (const call of calls) {
      const output = weather(JSON.parse(call.arguments));
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
  throw new Error("it called a tool again");
}

await run({
  async plain() {
    return said(await client.responses.create(body));
  },
  async stream() {
    let pieces = 0;
    const stream = client.responses.stream(body);
    for await (const event of stream) {
      if (event.type.endsWith("_text.delta")) pieces += 1;
    }
    return said(await stream.finalResponse(), pieces);
  },
  async tools() {
    return await looped((asked) => client.responses.create(asked));
  },
  async tools_stream() {
    return await looped((asked) => client.responses.stream(asked).finalResponse());
  },
  async schema() {
    const format = { type: "json_schema", name: "City", strict: true, schema: spec.city };
    const answer = await client.responses.parse({ ...body, text: { format } });
    return JSON.parse(answer.output_text);
  },
});
