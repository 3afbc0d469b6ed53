import type { BodyLimits, BodyRefusal } from "../core/http/index.ts";
import { type Json, parseJson, stringifyJson } from "../core/index.ts";
import { refuse } from "./problem.ts";

/** The connection ends behind the answer: the rest of the body may still arrive on it. */
const CLOSE = { connection: "close" };

/** The answer to a request without a body that can be used. */
export function refuseBody(
  why: BodyRefusal,
  { bytesMax, timeoutMs, budget }: BodyLimits,
): Response {
  if (why === "too_long") {
    return refuse("TOO_LARGE", `the body is longer than ${bytesMax} bytes`, {
      fix: "send less at a time",
      headers: CLOSE,
    });
  }
  if (why === "crowded") {
    const what = `request bodies take the ${budget.bytesMax} bytes of memory that they may`;
    return refuse("BODY_LIMIT", what, {
      fix: "send it again later, or raise api.body_budget",
      headers: { ...CLOSE, "retry-after": "1" },
    });
  }
  if (why === "late") {
    return refuse("BODY_TIMEOUT", `the body did not arrive within ${timeoutMs} ms`, {
      fix: "send it faster, or raise api.body_timeout",
      headers: CLOSE,
    });
  }
  const what = "the connection ended before the whole body was there";
  return refuse("REQUEST_INVALID", what, { status: 400, headers: CLOSE });
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
