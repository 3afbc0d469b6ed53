import type { HeldBy, OutcomeCounts } from "../core/index.ts";

export interface ReceiptBlock {
  /** As it was given in the command; of blocks that no command named, the digest in hex. */
  readonly block: number | bigint | string;
  /** With a digest. */
  readonly layer?: number;
  readonly outcome: string;
  readonly reason?: string;
  readonly by?: readonly HeldBy[];
}

/**
 * The answer to a command, as it travels: members as they are written here. `status`: `ok` where no
 * block was missing, held, deferred or rejected; `partial` where some were; `rejected` where the
 * command as a whole was refused (`reason`) and nothing changed; `running` while it is at work
 * (only from `/v1/commands/{id}` and as progress).
 */
export interface Receipt {
  readonly id: string | null;
  readonly type: string;
  readonly worker_id: string;
  /** Decimal: 64 bits. */
  readonly incarnation: string;
  readonly issuer: string;
  readonly status: "ok" | "partial" | "rejected" | "running";
  /** A stable word, then words for people: "rate_limited: 500 commands a second ...". */
  readonly reason?: string;
  /** It had been carried out before: this is the receipt of then. */
  readonly duplicate?: true;
  readonly counts: OutcomeCounts;
  /** Of RevokeLease those of the lease, the first 1,000. */
  readonly blocks: readonly ReceiptBlock[];
  /** So many more are not listed: the receipt was too large for where it went or was kept. */
  readonly blocks_left_out?: number;
  /** Prune and flush: blocks that stayed, the first 1,000. */
  readonly held?: readonly (ReceiptBlock & { readonly layer: number })[];
  readonly bytes?: number;
  readonly durable?: boolean;
  readonly lease_id?: string;
  /** Granted. */
  readonly ttl_seconds?: number;
  /** Bytes, in snake case, where a budget refused something. */
  readonly budget?: Readonly<Record<string, number>>;
  readonly progress?: {
    readonly done_blocks: number;
    readonly total_blocks: number | null;
    readonly bytes: number;
  };
  readonly elapsed_ms: number;
}
