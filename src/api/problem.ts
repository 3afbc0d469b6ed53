import { STATUS_CODES } from "node:http";
import { type ErrorCode, HearthError, stringifyJson } from "../core/index.ts";

/**
 * Codes of refusals that only HTTP has, with their status, in addition to the codes of HearthError.
 */
const REFUSALS = {
  UNAUTHORIZED: 401,
  FORBIDDEN: 403,
  HOST_REFUSED: 403,
  ORIGIN_REFUSED: 403,
  NOT_FOUND: 404,
  METHOD_NOT_ALLOWED: 405,
  TOO_LARGE: 413,
  /** The server cannot accept another connection. */
  CONNECTION_LIMIT: 503,
  /** The bodies of all requests together use the whole budget. */
  BODY_LIMIT: 503,
  BODY_TIMEOUT: 408,
  REQUEST_INVALID: 422,
  /**
   * The whole command was refused. The actual status depends on the reason, with which `detail`
   * begins.
   */
  COMMAND_REJECTED: 409,
  NO_WORKER: 503,
  UNKNOWN_WORKER: 404,
  /** All workers are busy. The router's configuration may set another status. */
  ALL_BUSY: 529,
} as const;
type Refusal = keyof typeof REFUSALS;

const STATUS_OF_ERROR = {
  CONFIG_INVALID: 500,
  USAGE: 400,
  NATIVE_UNAVAILABLE: 500,
  NATIVE_ABI_MISMATCH: 500,
  NATIVE_FAILED: 500,
  LANES_FAILED: 503,
  ARENA_UNAVAILABLE: 503,
  SSD_UNAVAILABLE: 503,
  SSD_FOREIGN: 503,
  SSD_IN_USE: 503,
  INDEX_IN_USE: 503,
  INDEX_FOREIGN: 503,
  INDEX_FAILED: 503,
  SOCKET_IN_USE: 503,
  ENGINE_PROTOCOL: 502,
  ENGINE_REFUSED: 502,
  ENGINE_CLOSED: 503,
  DEADLINE: 504,
  ABORTED: 503,
  ZMTP_UNAVAILABLE: 503,
  ROUTER_FULL: 503,
  TRACE_INVALID: 422,
  LIMIT: 429,
  UNSUPPORTED: 501,
  INTERNAL: 500,
} as const satisfies Record<ErrorCode, number>;

/** Status titles of RFC 9110, for statuses that have an older title or none in the runtime. */
const TITLES: Readonly<Record<number, string>> = {
  413: "Content Too Large",
  422: "Unprocessable Content",
  529: "Site Is Overloaded",
};

/** Body of every error response: RFC 9457 with two additional fields. */
export interface Problem {
  readonly type: "about:blank";
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  /** Stable code of a HearthError or of an HTTP refusal. */
  readonly code: ErrorCode | Refusal;
  /** How the caller can fix the problem. */
  readonly fix?: string;
}

export interface ProblemOptions {
  readonly fix?: string;
  /** HTTP status to use in place of the code's own. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
}

function respond(
  code: Problem["code"],
  status: number,
  detail: string,
  { fix, headers = {} }: Pick<ProblemOptions, "headers"> & { readonly fix?: string | undefined },
): Response {
  const title = TITLES[status] ?? STATUS_CODES[status] ?? "Error";
  const problem: Problem = { type: "about:blank", title, status, detail, code };
  return new Response(stringifyJson(fix === undefined ? problem : { ...problem, fix }), {
    status,
    headers: { "content-type": "application/problem+json", ...headers },
  });
}

export function refuse(code: Refusal, detail: string, options: ProblemOptions = {}): Response {
  return respond(code, options.status ?? REFUSALS[code], detail, options);
}

/**
 * Converts an error to a problem response. For errors other than HearthError, the response contains
 * no details; they are only in the log.
 */
export function problemOf(thrown: unknown): Response {
  const fault =
    thrown instanceof HearthError
      ? thrown
      : new HearthError("INTERNAL", "an unexpected error", { fix: "see the agent's log" });
  return respond(fault.code, STATUS_OF_ERROR[fault.code], fault.message, { fix: fault.fix });
}
