import OpenAI from "openai";
import { run, spec, weather } from "./case.mjs";

const client = new OpenAI({ baseURL: `${spec.url}/v1`, apiKey: spec.key, maxRetries: spec.retries });
const body = { model: spec.model, messages: [{ role: "user", content: spec.text }] };
const tool = { name: spec.tool.name, description: spec.tool.description, parameters: spec.tool.schema };
const runnable = { type: "function", function: { ...tool, function: weather, parse: JSON.parse } };

function said(choice, usage, pieces = 0) {
  return {
    text: choice.message.content ?? "",
    thoughts: choice.message.reasoning_content ?? "",
    finish: choice.finish_reason,
    input_tokens: usage.prompt_tokens,
    output_tokens: usage.completion_tokens,
    pieces,
  };
}

await run({
  async plain() {
    const answer = await client.chat.completions.create(body);
    return said(answer.choices[0], answer.usage);
  },
  async stream() {
    let pieces = 0;
    let thoughts = "";
    const stream = client.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      const delta = chunk.choices[0]?.delta;
      if (delta?.content || delta?.reasoning_content) pieces += 1;
      thoughts += delta?.reasoning_content ?? "";
    }
    const answer = await stream.finalChatCompletion();
    return { ...said(answer.choices[0], answer.usage, pieces), thoughts };
  },
  async tools() {
    return await client.chat.completions.runTools({ ...body, tools: [runnable] }).finalContent();
  },
  async tools_stream() {
    return await client.chat.completions.runTools({ ...body, stream: true, tools: [runnable] }).finalContent();
  },
  async schema() {
    const format = { type: "json_schema", json_schema: { name: "City", strict: true, schema: spec.city } };
    const answer = await client.chat.completions.parse({ ...body, response_format: format });
    return JSON.parse(answer.choices[0].message.content);
  },
  async forced_tool() {
    const city = { type: "function", function: { name: "City", strict: true, parameters: spec.city } };
    const answer = await client.chat.completions.create({ ...body, tools: [city], tool_choice: "required" });
    return JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments);
  },
});
