import type { ResidencyTier } from "../../src/observability/activity/index.ts";

/** What a worker's process is to be. */
export interface WorkerSpec {
  readonly kind: "worker";
  readonly name: string;
  readonly url: string;
  /** In decimal digits. */
  readonly incarnation: string;
  readonly seed: number;
  /** Blocks that are on its SSD as it comes up, of which no event ever speaks. */
  readonly diskBlocks: number;
}

export interface RouterSpec {
  readonly kind: "router";
  readonly name: string;
  readonly url: string;
  readonly folder: string;
  readonly seed: number;
}

export type Order =
  | { readonly order: "churn"; readonly on: boolean }
  /** Shares of messages that are lost, doubled and held back. */
  | {
      readonly order: "wire";
      readonly drop: number;
      readonly double: number;
      readonly hold: number;
    }
  | { readonly order: "report"; readonly id: number; readonly full: boolean };

/** Hashes in hex, sorted; only where the report was to be full. */
export type Content = Readonly<Record<ResidencyTier, readonly string[]>>;

export interface WorkerReport {
  readonly id: number;
  /** Of what it really has. */
  readonly digest: string;
  readonly blocks: number;
  readonly content: Content | null;
}

export interface RouterReport {
  readonly id: number;
  readonly targets: readonly {
    readonly worker: string;
    readonly isKnown: boolean;
    readonly digest: string;
    readonly content: Content | null;
  }[];
  /** By worker: requests, blocks and prefill tokens that it counts. */
  readonly loads: Readonly<Record<string, readonly [number, number, number]>>;
  /** By worker: requests that were routed here and not freed. */
  readonly own: Readonly<Record<string, number>>;
  readonly replicas: number;
  readonly indexBlocks: number;
  readonly pendingHashes: number;
  readonly requests: number;
  readonly rssBytes: number;
  readonly counts: Readonly<Record<string, number>>;
}
