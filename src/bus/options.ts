import type { Clock, Random } from "../core/index.ts";

/** Where what the bus has to say goes; `warn` is for what someone should look at. */
export type BusLog = (
  level: "info" | "warn",
  message: string,
  fields: Readonly<Record<string, unknown>>,
) => void;

/** Every wait and bound of a bus; the defaults are for a fleet. */
export interface BusLimits {
  /** What may wait while there is no connection or a slow one. */
  readonly queueMessages: number;
  readonly queueBytes: number;
  /** What may be on its way without a sign that the broker has it. */
  readonly windowBytes: number;
  /** How many requests may wait for their answers. */
  readonly requestsMax: number;
  /** How long one server may take to be connected to. */
  readonly connectMs: number;
  /** The first wait before another attempt, doubled each time up to the second; less jitter. */
  readonly retryMinMs: number;
  readonly retryMaxMs: number;
  /** How often a connection is asked for a sign of life, and how long it may take to give one. */
  readonly pingMs: number;
  readonly silenceMs: number;
}

export const BUS_LIMITS: BusLimits = {
  queueMessages: 10_000,
  queueBytes: 16 * 2 ** 20,
  windowBytes: 4 * 2 ** 20,
  requestsMax: 100_000,
  connectMs: 5_000,
  retryMinMs: 250,
  retryMaxMs: 15_000,
  pingMs: 10_000,
  silenceMs: 10_000,
};

export const INBOX_PREFIX = "_INBOX";

/** What every bus needs, whatever carries it. */
export interface BusBasics {
  readonly clock: Clock;
  readonly random: Random;
  readonly log?: BusLog;
  readonly limits?: Partial<BusLimits>;
  /** Subjects of answers to this process begin with it; `_INBOX` unless given. */
  readonly inboxPrefix?: string;
  /**
   * How subjects begin that this process answers to. Every other `reply` of a message is dropped:
   * a sender must not choose where this process publishes. Answers go anywhere unless given.
   */
  readonly replyPrefixes?: readonly string[];
}
