// A case as JSON on stdin; what the client made of it as JSON on stdout.
import { readFileSync } from "node:fs";

export const spec = JSON.parse(readFileSync(0, "utf8"));

export function weather(args) {
  if (args.city !== "Paris") throw new Error(`asked for ${JSON.stringify(args)}`);
  return spec.tool.says;
}

// Runs the case; an error with a status is told as a refusal, whatever else fails fails the script.
export async function run(cases) {
  try {
    console.log(JSON.stringify({ said: await cases[spec.case]() }));
  } catch (error) {
    const told = error.lastError ?? error;
    const status = told.status ?? told.statusCode;
    if (status === undefined) throw error;
    console.log(JSON.stringify({ refused: { status, message: `${told.message} ${told.responseBody ?? ""}` } }));
  }
}
