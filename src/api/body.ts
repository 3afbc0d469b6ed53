import type { BodyLimits, BodyRefusal } from "../core/http/index.ts";
import { type Json, parseJson, stringifyJson } from "../core/index.ts";
import { refuse } from "./problem.ts";

/**
 * Headers of a response after which the connection closes, because the rest of the body may still
 * arrive on it.
 */
const CLOSE = { connection: "close" };

/** Returns the response to a request whose body cannot be read. */
export function refuseBody(
  why: BodyRefusal,
  { bytesMax, timeoutMs, budget }: BodyLimits,
): Response {
  if (why === "too_long") {
    return refuse("TOO_LARGE", `the body is longer than ${bytesMax} bytes`, {
      fix: "split the request",
      headers: CLOSE,
    });
  }
  if (why === "crowded") {
    const what = `request bodies use their whole budget of ${budget.bytesMax} bytes`;
    return refuse("BODY_LIMIT", what, {
      fix: "retry later, or send less at a time",
      headers: { ...CLOSE, "retry-after": "1" },
    });
  }
  if (why === "late") {
    return refuse("BODY_TIMEOUT", `the body did not arrive within ${timeoutMs} ms`, {
      fix: "send it faster, or in several requests",
      headers: CLOSE,
    });
  }
  const what = "the connection ended before the whole body arrived";
  return refuse("REQUEST_INVALID", what, { status: 400, headers: CLOSE });
}

type JsonObject = Readonly<Record<string, Json>>;

/**
 * Parses a body that contains one JSON object. 64-bit integers are exact. Returns the error
 * response if it is not valid.
 */
export async function readObject(request: Request): Promise<JsonObject | Response> {
  let value: Json;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await request.bytes());
    value = parseJson(text);
  } catch (thrown) {
    const why = thrown instanceof SyntaxError ? thrown.message : "invalid UTF-8";
    return refuse("REQUEST_INVALID", `the body is not valid JSON: ${why.slice(0, 200)}`);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  return refuse("REQUEST_INVALID", "the body is not a JSON object");
}

export function isInteger(value: Json | undefined, min: number, max: number): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= min && value <= max;
}

export interface AnswerOptions {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Returns a JSON response in which 64-bit integers are exact. */
export function answerJson(value: unknown, options: AnswerOptions = {}): Response {
  const { status = 200, headers = {} } = options;
  return new Response(stringifyJson(value), {
    status,
    headers: { "content-type": "application/json", ...headers },
  });
}
