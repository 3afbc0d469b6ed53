import type { PublishOutcome } from "../../bus/index.ts";
import type { Receipt } from "../index.ts";

/** A command as it is sent: its own members, with the envelope's beside them. */
export type WireCommand = { readonly type: string } & Readonly<Record<string, unknown>>;

export interface SendOptions {
  /** How long an answer is waited for, all tries together. 30 s unless given. */
  readonly deadlineMs?: number;
  /** How long one is waited for who is not there at all. As long as the deadline unless given. */
  readonly absentMs?: number;
  readonly signal?: AbortSignal;
  /** Told of what a long command reports on its way. */
  readonly onProgress?: (receipt: Receipt) => void;
}

/**
 * `receipt`: the worker answered (its `status` may be `rejected`). `unanswered`: it was sent and no
 * answer came within the deadline: it may or may not have been carried out; sending it again with
 * the same id settles it. `unreachable`: it was never sent, or nobody listens for this worker.
 * `refused`: who was asked wants other credentials, or does not know such commands; `why` says it.
 */
export type SendResult =
  | { readonly kind: "receipt"; readonly receipt: Receipt }
  | {
      readonly kind: "unanswered" | "unreachable" | "refused";
      readonly tries: number;
      readonly why: string;
      /** Of HTTP, where it was refused over it. */
      readonly status?: number;
    };

export interface BroadcastResult {
  /** One for each worker that answered, in the order of their names. */
  readonly receipts: readonly Receipt[];
  /** Workers that were found just before and did not answer. */
  readonly silent: readonly string[];
  /** Why nothing could be sent at all; null where it was. */
  readonly why: string | null;
}

export interface FoundWorker {
  readonly id: string;
  readonly version: string;
  /** Decimal: 64 bits; null where it does not say. */
  readonly incarnation: string | null;
}

/**
 * Sends commands to workers and brings their receipts. Promises:
 *
 * - Every command gets an `id` unless it has one, and the client's `issuer`, so that a try after a
 *   lost answer changes nothing twice.
 * - A wait ends at its deadline, or with ABORTED when its signal fires. Nothing is sent after that.
 * - Answers may come late, twice and out of order: each command gets its own.
 * - Throws LIMIT where a command is larger than what carries it, ENGINE_CLOSED once closed.
 */
export interface ControlClient extends AsyncDisposable {
  send(worker: string, command: WireCommand, options?: SendOptions): Promise<SendResult>;
  /** To all workers; waits for those that answered a discovery just before, or the deadline. */
  broadcast(command: WireCommand, options?: SendOptions): Promise<BroadcastResult>;
  /**
   * Workers that answer discovery within `ms`, by name. Throws DEADLINE where nobody could be asked
   * in that time, ENGINE_REFUSED where who was asked wants other credentials.
   */
  workers(ms?: number, signal?: AbortSignal): Promise<readonly FoundWorker[]>;
  /** Sends it without waiting for anything: whoever needs to know asks with `send`. */
  publish(worker: string, command: WireCommand): PublishOutcome;
}
