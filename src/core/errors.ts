/**
 * The errors of Hearth. Expected outcomes (a miss, `full`, `stale`) are tagged results, not errors.
 */

/**
 * Codes of all errors that Hearth reports, and whether the caller may retry. Codes are stable: log
 * lines, HTTP replies and exit messages contain them, and `hearth reference errors` prints this
 * table.
 */
export const ERROR_CODES = {
  CONFIG_INVALID: { retryable: false, meaning: "the configuration is invalid" },
  USAGE: { retryable: false, meaning: "the command line is invalid" },
  NATIVE_UNAVAILABLE: { retryable: false, meaning: "the native library cannot be loaded here" },
  NATIVE_ABI_MISMATCH: {
    retryable: false,
    meaning: "native library and bindings come from different builds",
  },
  NATIVE_FAILED: { retryable: false, meaning: "a native call returned an unexpected status" },
  LANES_FAILED: { retryable: true, meaning: "data connections to a peer could not be opened" },
  ARENA_UNAVAILABLE: { retryable: false, meaning: "the RAM arena cannot get its memory" },
  SSD_UNAVAILABLE: { retryable: false, meaning: "the SSD folder cannot be used" },
  INDEX_IN_USE: { retryable: false, meaning: "another agent uses the index of the SSD" },
  INDEX_FAILED: { retryable: true, meaning: "the index of the SSD cannot be read" },
  INDEX_FOREIGN: { retryable: false, meaning: "the index belongs to another host or worker" },
  SSD_FOREIGN: { retryable: false, meaning: "the SSD folder belongs to another host or worker" },
  SSD_IN_USE: { retryable: false, meaning: "another process uses the SSD folder" },
  SOCKET_IN_USE: { retryable: false, meaning: "another agent answers on the engine socket" },
  ENGINE_PROTOCOL: { retryable: false, meaning: "a frame broke the engine protocol" },
  ENGINE_REFUSED: {
    retryable: false,
    meaning: "the agent refused the request; the message has the reason",
  },
  ENGINE_CLOSED: { retryable: true, meaning: "the connection to the agent is gone" },
  DEADLINE: { retryable: true, meaning: "the operation exceeded its deadline" },
  ABORTED: { retryable: true, meaning: "the caller aborted the operation" },
  ZMTP_UNAVAILABLE: { retryable: false, meaning: "cannot listen at a ZeroMQ endpoint" },
  ROUTER_FULL: { retryable: true, meaning: "the router has the maximum number of workers" },
  TRACE_INVALID: { retryable: false, meaning: "a trace file cannot be read" },
  LIMIT: { retryable: true, meaning: "a limit was reached" },
  UNSUPPORTED: { retryable: false, meaning: "this host or build cannot do that" },
  INTERNAL: { retryable: false, meaning: "an invariant does not hold: a bug in Hearth" },
} as const satisfies Record<string, { retryable: boolean; meaning: string }>;

export type ErrorCode = keyof typeof ERROR_CODES;

export interface HearthErrorOptions {
  readonly cause?: unknown;
  /**
   * How the operator or caller can fix the problem, as an imperative: "raise LimitMEMLOCK to
   * infinity".
   */
  readonly fix?: string;
}

export class HearthError extends Error {
  override readonly name = "HearthError";
  readonly code: ErrorCode;
  readonly fix: string | undefined;

  constructor(code: ErrorCode, message: string, options: HearthErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.fix = options.fix;
  }

  get retryable(): boolean {
    return ERROR_CODES[this.code].retryable;
  }

  /** One line for operators: the message, followed by the fix if there is one. */
  get text(): string {
    return this.fix === undefined ? this.message : `${this.message}: ${this.fix}`;
  }
}

/** Returns the message of a thrown value of any type. */
export function messageOf(thrown: unknown): string {
  if (thrown instanceof HearthError) return thrown.text;
  return thrown instanceof Error ? thrown.message : String(thrown);
}

/**
 * Checks an invariant, in production too. A failed assertion is a bug; invalid input must be
 * handled by other means.
 */
export function assert(condition: unknown, what: string): asserts condition {
  if (!condition) throw new HearthError("INTERNAL", `invariant broken: ${what}`);
}

/**
 * Marks the branch of a switch that no value can reach; the compiler checks this. If reached
 * anyway, throws INTERNAL with the value.
 */
export function unreachable(value: never, what: string): never {
  throw new HearthError("INTERNAL", `${what}: no case for ${String(value)}`);
}
