import type { ErrorCode } from "../../core/index.ts";
import type { AliasRow, BlockRows } from "./block-index.ts";
import type { LedgerContents } from "./holds/hold-ledger.ts";

/** Whose index it is. */
export interface IndexOwner {
  readonly worker: string;
  readonly machine: string;
  /** Names the SSD folder it speaks of: another folder's index is of no use, and set aside. */
  readonly store: string;
}

/** How far a run of the agent has come; committed together with the rows. */
export interface RunProgress {
  readonly incarnation: bigint | null;
  readonly flushedSequence: number;
  readonly clean: boolean;
  /** It holds a row of every block that lay on SSD when recovery was over. */
  readonly complete: boolean;
}

export interface SetAside {
  readonly path: string;
  readonly why: string;
}

export interface OpenOrder {
  readonly kind: "open";
  readonly folder: string;
  readonly owner: IndexOwner;
  /** Milliseconds since 1970: the name of what is set aside. */
  readonly wallMs: number;
  /** How long a foreign process may keep the file locked before it is set aside. */
  readonly busyMs: number;
  /** The caller was told long ago that there is nothing: what is found now is set aside. */
  readonly isLate: boolean;
}

export interface CommitOrder {
  readonly kind: "commit";
  readonly changes: ArrayBuffer | null;
  readonly count: number;
  readonly progress: RunProgress;
  readonly durable: boolean;
}

export interface OpenLedgerOrder extends Omit<OpenOrder, "kind" | "owner"> {
  readonly kind: "openLedger";
  readonly owner: Pick<IndexOwner, "worker" | "machine">;
  readonly incarnation: bigint;
}

export interface CommitLedgerOrder {
  readonly kind: "commitLedger";
  /** Records, of which `length` bytes count. */
  readonly changes: ArrayBuffer | null;
  readonly length: number;
  /** Null: as it was. */
  readonly lastSeen: LedgerContents["lastSeen"];
  readonly durable: boolean;
}

/** What the main thread asks of the worker; each is answered once, in order. */
export type Order =
  | OpenOrder
  | { readonly kind: "nextBlocks" }
  | { readonly kind: "nextAliases" }
  | CommitOrder
  | OpenLedgerOrder
  | CommitLedgerOrder
  | { readonly kind: "close" };

export type Answer =
  | {
      readonly kind: "opened";
      readonly previous: RunProgress;
      readonly rows: number;
      readonly setAside: SetAside | null;
    }
  | {
      readonly kind: "refused";
      readonly code: ErrorCode;
      readonly message: string;
      readonly fix: string;
    }
  | {
      readonly kind: "ledgerOpened";
      /** Its rows as records, of which `length` bytes count. */
      readonly contents: ArrayBuffer;
      readonly length: number;
      readonly lastSeen: LedgerContents["lastSeen"];
      readonly setAside: SetAside | null;
    }
  | { readonly kind: "blocks"; readonly rows: BlockRows | null }
  | { readonly kind: "aliases"; readonly rows: readonly AliasRow[] | null }
  | { readonly kind: "committed"; readonly rows: number; readonly changes: ArrayBuffer | null }
  | { readonly kind: "closed" }
  /** The disk does not do it, now; a commit hands its changes back. */
  | { readonly kind: "failed"; readonly why: string; readonly changes: ArrayBuffer | null };
