import type { Brand, WorkerId } from "../core/index.ts";
import type { KeySpace } from "../observability/activity/index.ts";

/**
 * A target of routing: one data parallel rank of one worker, as a small number that tables are
 * indexed by. A number is used again only after all tables have forgotten it.
 */
export type TargetId = Brand<number, "TargetId">;

/** What a worker is for; `both` serves whole requests. */
export type WorkerRole = "both" | "prefill" | "decode";

/** What is known of a worker, from the configuration, from whoever registered it, or by events. */
export interface WorkerSpec {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly model: string;
  readonly role: WorkerRole;
  /** Where its OpenAI-compatible API listens; null: requests are not sent to it by us. */
  readonly url: string | null;
  /** KV blocks of `blockTokens` that its GPU holds; null: not known, never busy by blocks. */
  readonly totalBlocks: number | null;
  /** Tokens of one step at most; null: not known. */
  readonly batchTokensMax: number | null;
  readonly spaces: readonly KeySpace[];
}

/**
 * `live`: it may be chosen. `stale`: nothing was heard of it for too long; it is chosen only where
 * nothing else is left. `draining`: it takes no new requests. `gone`: to be forgotten.
 */
export type WorkerState = "live" | "stale" | "draining" | "gone";

export interface Target extends WorkerSpec {
  readonly id: TargetId;
  readonly state: WorkerState;
  /** Whether what it holds is known: events come, without a gap; or it is predicted. */
  readonly isKnown: boolean;
}

export type WorkerNews =
  | { readonly kind: "joined" | "changed" | "left"; readonly target: Target }
  | { readonly kind: "state"; readonly target: Target; readonly before: WorkerState };

/**
 * Every worker there is. Promises: a target keeps its number while it is known; `left` is told
 * once, after which its number may be given to another; lists are in the order of numbers.
 */
export interface WorkerTable {
  readonly targets: readonly Target[];
  get(id: TargetId): Target | null;
  find(worker: WorkerId, rank: number): Target | null;
  /**
   * Adds it or changes what is known of it. A new one gets the number `wanted` where that is free:
   * a picture that was saved goes by numbers. Throws ROUTER_FULL where there are too many.
   */
  put(spec: WorkerSpec, wanted?: TargetId): Target;
  setState(id: TargetId, state: WorkerState): void;
  setKnown(id: TargetId, isKnown: boolean): void;
  remove(id: TargetId): void;
  listen(listener: (news: WorkerNews) => void): Disposable;
}
