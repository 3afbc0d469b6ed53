import { type ErrorCode, HearthError } from "../../core/index.ts";
import type { AliasRow, BlockRows } from "./block-index.ts";
import type { LedgerContents } from "./retention/retention-ledger.ts";

/**
 * Beside this file; in the executable, where this code lies at the root, it is an entry point of
 * its own at its path below `src`.
 */
const isInExecutable = import.meta.url.includes("/$bunfs/");
const WORKER = isInExecutable ? "./store/index/index-worker.ts" : "./index-worker.ts";

/**
 * The line to the worker: orders go out, answers come back in the same order. A worker that is gone
 * answers everything with `failed`.
 */
export class IndexLine {
  readonly #worker: Worker;
  readonly #waiting: ((answer: Answer) => void)[] = [];
  #gone: string | null = null;

  constructor() {
    this.#worker = new Worker(new URL(WORKER, import.meta.url).href);
    this.#worker.onmessage = ({ data }: MessageEvent<Answer>) => this.#waiting.shift()?.(data);
    this.#worker.onerror = ({ message }) => this.#end(`its worker failed: ${message}`);
    this.#worker.addEventListener("close", () => this.#end("its worker has ended"));
  }

  /** Null while the worker lives. */
  get gone(): string | null {
    return this.#gone;
  }

  ask(order: Order): Promise<Answer> {
    if (this.#gone !== null) return Promise.resolve(failed(this.#gone));
    const travelling = "changes" in order && order.changes !== null ? [order.changes] : [];
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
      this.#worker.postMessage(order, travelling);
    });
  }

  /** Does not wait for a worker that hangs in the kernel. */
  end(): void {
    this.#end("it is closed");
    this.#worker.terminate();
  }

  #end(why: string): void {
    this.#gone ??= why;
    for (const resolve of this.#waiting.splice(0)) resolve(failed(this.#gone));
  }
}

function failed(why: string): Answer {
  return { kind: "failed", why, changes: null };
}

/**
 * Starts a worker and has it open what the order says. `failed`: the disk does not even allow that.
 * Throws HearthError where the worker refuses, ABORTED once the signal fires.
 */
export async function openLine<Kind extends "opened" | "ledgerOpened">(
  order: OpenOrder | OpenLedgerOrder,
  kind: Kind,
  signal: AbortSignal | undefined,
): Promise<{ line: IndexLine; answer: Extract<Answer, { kind: Kind | "failed" }> }> {
  const line = new IndexLine();
  const onAbort = () => line.end();
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    const answer = await line.ask(order);
    if (signal?.aborted) throw new HearthError("ABORTED", "opening the index was given up");
    if (answer.kind === "refused") {
      throw new HearthError(answer.code, answer.message, { fix: answer.fix });
    }
    if (answer.kind !== kind && answer.kind !== "failed") {
      throw new HearthError("INTERNAL", `the index's worker answered ${answer.kind}`);
    }
    return { line, answer: answer as Extract<Answer, { kind: Kind | "failed" }> };
  } catch (thrown) {
    line.end();
    throw thrown;
  } finally {
    signal?.removeEventListener("abort", onAbort);
  }
}

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
