import type { WorkerId } from "../../core/index.ts";

/** A request as other routers hear of it; by worker and rank, for numbers of targets differ. */
export interface SharedRequest {
  readonly id: string;
  readonly worker: WorkerId;
  readonly rank: number;
  readonly hashes: BigUint64Array;
  readonly promptTokens: number;
  readonly prefillTokens: number;
  readonly expectedOutputTokens: number | null;
  /** Its first output token has not come. */
  readonly isPrefilling: boolean;
  readonly outputTokens: number;
}

/** What one router did that all count. */
export type LoadNews =
  | { readonly kind: "add"; readonly request: SharedRequest }
  | ({ readonly kind: "prefill_complete" } & NewsOf)
  | ({ readonly kind: "free" } & NewsOf);

export interface NewsOf {
  readonly id: string;
  /** Null: it is gone. */
  readonly worker: WorkerId | null;
  readonly rank: number;
}

/** Of each request the output tokens so far; only the latest number of it counts. */
export type OutputNews = readonly (readonly [id: string, tokens: number])[];
