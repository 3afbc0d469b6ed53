import { type Json, parseJson, stringifyJson } from "../core/index.ts";
import { refuse } from "./problem.ts";

/** The whole body, or the answer to one that is too long or never came. */
export async function readBody(
  request: Request,
  bytesMax: number,
): Promise<Uint8Array<ArrayBuffer> | Response> {
  const announced = Number(request.headers.get("content-length") ?? 0);
  if (announced > bytesMax) return refuseLength(bytesMax);
  try {
    const bytes = new Uint8Array(await request.arrayBuffer());
    return bytes.length > bytesMax ? refuseLength(bytesMax) : bytes;
  } catch (thrown) {
    // The server stops reading at the same length; anything else is a connection that is gone.
    if (/maxRequestBodySize/.test(String(thrown))) return refuseLength(bytesMax);
    return refuse("REQUEST_INVALID", "the body did not come as a whole", { status: 400 });
  }
}

function refuseLength(bytesMax: number): Response {
  return refuse("TOO_LARGE", `the body is longer than ${bytesMax} bytes`, {
    fix: "send less at a time",
  });
}

type JsonObject = Readonly<Record<string, Json>>;

/** The object in a body, its 64-bit integers whole, or the answer to one that holds none. */
export async function readObject(request: Request): Promise<JsonObject | Response> {
  let value: Json;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await request.bytes());
    value = parseJson(text);
  } catch (thrown) {
    const why = thrown instanceof SyntaxError ? thrown.message : "it is not UTF-8";
    return refuse("REQUEST_INVALID", `the body is no JSON: ${why.slice(0, 200)}`);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  return refuse("REQUEST_INVALID", "the body is no JSON object");
}

export function isInteger(value: Json | undefined, min: number, max: number): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= min && value <= max;
}

export interface AnswerOptions {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
}

/** An answer whose 64-bit integers are whole. */
export function answerJson(value: unknown, options: AnswerOptions = {}): Response {
  const { status = 200, headers = {} } = options;
  return new Response(stringifyJson(value), {
    status,
    headers: { "content-type": "application/json", ...headers },
  });
}
