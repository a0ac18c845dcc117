import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { cases } from "./aisdk.mjs";
import { spec } from "./case.mjs";

const provider = createOpenAICompatible({
  name: "kvitto",
  baseURL: `${spec.url}/v1`,
  apiKey: spec.key,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
await cases(provider(spec.model));
