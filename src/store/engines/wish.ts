import type { NamespaceIndex } from "../../core/index.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { EngineMember, Engines } from "./engines.ts";

/** The same blocks in one namespace: those of one rank of a model. */
export interface LookupRank {
  readonly namespace: NamespaceIndex;
  /** 32 bytes a block. */
  readonly digests: Uint8Array;
  /** Eight words a block. */
  readonly keys: Uint32Array;
}

export interface LookupWish {
  /** At least one; a block counts only if it is there for all of them. */
  readonly ranks: readonly LookupRank[];
  readonly layer: number;
  readonly count: number;
  /** Tiers that count, as bits of `Tier`. */
  readonly tiers: number;
  /** Leading blocks in RAM stay there until the engine has acquired them. */
  readonly hold: boolean;
  /** Blocks that are not in RAM are brought there. */
  readonly fetch: boolean;
  /** Blocks that are being written or are announced are waited for. */
  readonly wait: boolean;
  readonly deadlineMs: number;
  readonly holdMs: number;
  /** Acquisitions of one block that end its reservation. */
  readonly readers: number;
  /** The peer that computed the blocks; empty: none is known. */
  readonly source: string;
}

/** What is known of the blocks now. */
export interface LookupState {
  readonly leading: number;
  readonly ready: number;
  /** Number of the reservation; 0: none. */
  readonly hold: number;
  readonly isBudgetReached: boolean;
  readonly announced: number;
  /** The best tier of each block as its bit, for the rank that has it worst; 0 behind `leading`. */
  readonly best: Uint8Array;
}

export interface LookupParts {
  readonly store: TieredStore;
  readonly engines: Engines;
  readonly member: EngineMember;
  /** Called when blocks have come, and now and then while more are on their way. */
  readonly onPartial: (state: LookupState) => void;
}
