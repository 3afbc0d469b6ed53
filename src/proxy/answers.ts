/** Errors as OpenAI's API writes them, which its clients turn into exceptions. */

export interface OpenAiError {
  readonly status: number;
  readonly message: string;
  /** OpenAI's classes: `invalid_request_error`, `server_error`, `overloaded_error`, ... */
  readonly type: string;
  /** Stable, for programs. */
  readonly code: string;
  readonly param?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

function bodyOf({ message, type, code, param, status }: OpenAiError): string {
  // vLLM and SGLang repeat the status as `code`; OpenAI has words. Clients show what is there.
  return JSON.stringify({ error: { message, type, param: param ?? null, code, status } });
}

export function refuse(error: OpenAiError): Response {
  const headers = { "content-type": "application/json", ...error.headers };
  return new Response(bodyOf(error), { status: error.status, headers });
}

/** The last event of a stream that broke; nothing comes behind it, `[DONE]` neither. */
export function errorEvent(error: OpenAiError): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(`data: ${bodyOf(error)}\n\n`);
}

export function invalid(message: string, param?: string, status = 400): OpenAiError {
  const code = status === 413 ? "too_large" : "invalid_request";
  const named = param === undefined ? {} : { param };
  return { status, message, type: "invalid_request_error", code, ...named };
}

export function unknownModel(model: string): OpenAiError {
  return {
    status: 404,
    message: `The model \`${model}\` does not exist.`,
    type: "invalid_request_error",
    code: "model_not_found",
    param: "model",
  };
}

export function unavailable(message: string): OpenAiError {
  return { status: 503, message, type: "server_error", code: "no_worker" };
}

export function busy(message: string, status: number, retryAfterSeconds: number): OpenAiError {
  const headers = { "retry-after": String(retryAfterSeconds) };
  return { status, message, type: "overloaded_error", code: "busy", headers };
}

export function workerFailed(message: string): OpenAiError {
  return { status: 502, message, type: "server_error", code: "worker_failed" };
}

export function workerLate(message: string): OpenAiError {
  return { status: 504, message, type: "server_error", code: "worker_timeout" };
}
