import { createDeepSeek } from "@ai-sdk/deepseek";
import { cases } from "./aisdk.mjs";
import { spec } from "./case.mjs";

await cases(createDeepSeek({ baseURL: `${spec.url}/v1`, apiKey: spec.key })(spec.model));
