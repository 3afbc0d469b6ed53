import type { ErrorShape } from "./endpoint.ts";

/**
 * Errors that the proxy itself answers with, in the shapes that client libraries turn into
 * exceptions.
 */

export interface ProxyError {
  readonly status: number;
  readonly message: string;
  /**
   * OpenAI's error class, such as `invalid_request_error`, `server_error` or `overloaded_error`.
   */
  readonly type: string;
  /** Code that programs can rely on. It never changes for the same error. */
  readonly code: string;
  readonly param?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Anthropic's error class for each HTTP status. */
const ANTHROPIC_TYPES: Readonly<Record<number, string>> = {
  400: "invalid_request_error",
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  405: "invalid_request_error",
  413: "request_too_large",
  529: "overloaded_error",
};

/** Builds the JSON body of an error in the shape of the client's API. */
export function errorBody(
  { message, type, code, param, status }: ProxyError,
  shape: ErrorShape,
): Record<string, unknown> {
  if (shape === "anthropic") {
    const error = { type: ANTHROPIC_TYPES[status] ?? "api_error", message, code };
    return { type: "error", error };
  }
  // vLLM and SGLang repeat the HTTP status as `code`; OpenAI sends a text. Clients show either one.
  return { error: { message, type, param: param ?? null, code, status } };
}

export function refuse(error: ProxyError, shape: ErrorShape = "openai"): Response {
  const headers = { "content-type": "application/json", ...error.headers };
  const body = JSON.stringify(errorBody(error, shape));
  return new Response(body, { status: error.status, headers });
}

/** Builds the last event of a broken stream. Nothing follows the event, not even `[DONE]`. */
export function errorEvent(error: ProxyError, shape: ErrorShape): Uint8Array<ArrayBuffer> {
  const { message, code } = error;
  const body = errorBody(error, shape);
  // Clients of the Responses API read the event's `message`. OpenAI's own client throws if the
  // event has an `error` member.
  const event =
    shape === "responses" ? { type: "error", message, code, param: null, ...body } : body;
  const name = shape === "openai" ? "" : "event: error\n";
  return new TextEncoder().encode(`${name}data: ${JSON.stringify(event)}\n\n`);
}

export function invalid(message: string, param?: string, status = 400): ProxyError {
  const code = status === 413 ? "too_large" : "invalid_request";
  const named = param === undefined ? {} : { param };
  return { status, message, type: "invalid_request_error", code, ...named };
}

export function unknownModel(model: string): ProxyError {
  return {
    ...invalid(`The model \`${model}\` does not exist.`, "model", 404),
    code: "model_not_found",
  };
}

export function busy(message: string, status: number, retryAfterSeconds: number): ProxyError {
  const headers = { "retry-after": String(retryAfterSeconds) };
  return { status, message, type: "overloaded_error", code: "busy", headers };
}

/** Returns a function that makes errors which differ only in their message. */
function errors(status: number, type: string, code: string): (message: string) => ProxyError {
  return (message) => ({ status, message, type, code });
}

export const late = errors(408, "invalid_request_error", "body_timeout");
/** Error of the proxy itself, not of a worker. */
export const ownFault = errors(500, "server_error", "internal");
export const workerFailed = errors(502, "server_error", "worker_failed");
export const unavailable = errors(503, "server_error", "no_worker");
export const workerLate = errors(504, "server_error", "worker_timeout");
