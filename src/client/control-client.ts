import type { Receipt } from "../control/index.ts";

/** A command as it is sent: the origin's JSON, with the envelope's members beside it. */
export type WireCommand = { readonly type: string } & Readonly<Record<string, unknown>>;

export interface SendOptions {
  /** How long an answer is waited for, all tries together. */
  readonly deadlineMs?: number;
  readonly signal?: AbortSignal;
  /** Told of what a long command reports on its way. */
  readonly onProgress?: (receipt: Receipt) => void;
}

/**
 * `receipt`: the worker answered (its `status` may be `rejected`). `unanswered`: no answer within
 * the deadline: the command may or may not have been carried out; sending it again with the same id
 * settles it. `unreachable`: nobody listens for this worker.
 */
export type SendResult =
  | { readonly kind: "receipt"; readonly receipt: Receipt }
  | { readonly kind: "unanswered" | "unreachable"; readonly tries: number; readonly why: string };

export interface BroadcastResult {
  readonly receipts: readonly Receipt[];
  /** Workers that were found before and did not answer. */
  readonly silent: readonly string[];
}

/**
 * Sends commands to workers and brings their receipts. Every command gets an `id` unless it has
 * one, so that a try after a lost answer changes nothing twice.
 */
export interface ControlClient extends AsyncDisposable {
  send(worker: string, command: WireCommand, options?: SendOptions): Promise<SendResult>;
  /** To all workers; waits for those that answered a discovery just before, or the deadline. */
  broadcast(command: WireCommand, options?: SendOptions): Promise<BroadcastResult>;
  /** Workers that answer discovery within `ms`. */
  workers(ms?: number): Promise<readonly { readonly id: string; readonly version: string }[]>;
}
