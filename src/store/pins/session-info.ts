import type { NamespaceIndex } from "../../core/index.ts";

export interface TierUse {
  readonly blocks: number;
  readonly bytes: number;
}

/** What of a session is where: the blocks on the path from the root to its last block. */
export interface SessionState {
  /** All of them, also those that are on no tier any more. */
  readonly depth: number;
  readonly ram: TierUse;
  /** A block on both tiers counts on both. */
  readonly ssd: TierUse;
}

export interface SessionInfo {
  readonly namespace: NamespaceIndex;
  readonly session: bigint;
  /** Since its last commit. */
  readonly idleMs: number;
  readonly state: SessionState;
}

export interface ListOptions {
  /** Null: of all namespaces. */
  readonly namespace: NamespaceIndex | null;
  /** Where to go on: `next` of the page before, 0 for the first. */
  readonly after: number;
  readonly max: number;
}

export interface SessionPage {
  readonly sessions: readonly SessionInfo[];
  /** Null: that was all. */
  readonly next: number | null;
}
