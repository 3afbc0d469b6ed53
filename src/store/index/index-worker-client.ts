import { type ErrorCode, HearthError } from "../../core/index.ts";
import type { AliasRow, BlockRows } from "./block-index.ts";
import type { LedgerContents } from "./retention/retention-ledger.ts";

/**
 * In the sources the worker is beside this file. In the executable this module is at the root, and
 * the worker is an entry point at its path below `src`.
 */
const isInExecutable = import.meta.url.includes("/$bunfs/");
const WORKER = isInExecutable ? "./store/index/index-worker.ts" : "./index-worker.ts";

/**
 * Connection to the worker thread. Answers arrive in the order of the requests. Once the worker is
 * gone, every request is answered with `failed`.
 */
export class IndexWorkerClient {
  readonly #worker: Worker;
  readonly #waiting: ((answer: Answer) => void)[] = [];
  #gone: string | null = null;

  constructor() {
    this.#worker = new Worker(new URL(WORKER, import.meta.url).href);
    this.#worker.onmessage = ({ data }: MessageEvent<Answer>) => this.#waiting.shift()?.(data);
    this.#worker.onerror = ({ message }) => this.#end(`index worker failed: ${message}`);
    this.#worker.addEventListener("close", () => this.#end("index worker exited"));
  }

  /** Reason why the worker is gone. Null while it lives. */
  get gone(): string | null {
    return this.#gone;
  }

  ask(order: Order): Promise<Answer> {
    if (this.#gone !== null) return Promise.resolve(failed(this.#gone));
    const transfers = "changes" in order && order.changes !== null ? [order.changes] : [];
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
      this.#worker.postMessage(order, transfers);
    });
  }

  /** Terminates the worker, even if it hangs in a system call. */
  end(): void {
    this.#end("index closed");
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
 * Starts a worker and sends it the open order. `failed`: the disk does not allow the open. Throws
 * HearthError if the worker refuses, ABORTED if the signal fires.
 */
export async function openWorkerClient<Kind extends "opened" | "ledgerOpened">(
  order: OpenOrder | OpenLedgerOrder,
  kind: Kind,
  signal: AbortSignal | undefined,
): Promise<{ line: IndexWorkerClient; answer: Extract<Answer, { kind: Kind | "failed" }> }> {
  const line = new IndexWorkerClient();
  const onAbort = () => line.end();
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    const answer = await line.ask(order);
    if (signal?.aborted) throw new HearthError("ABORTED", "opening the index was aborted");
    if (answer.kind === "refused") {
      throw new HearthError(answer.code, answer.message, { fix: answer.fix });
    }
    if (answer.kind !== kind && answer.kind !== "failed") {
      throw new HearthError("INTERNAL", `unexpected answer of the index worker: ${answer.kind}`);
    }
    return { line, answer: answer as Extract<Answer, { kind: Kind | "failed" }> };
  } catch (thrown) {
    line.end();
    throw thrown;
  } finally {
    signal?.removeEventListener("abort", onAbort);
  }
}

/** Owner of an index. */
export interface IndexOwner {
  readonly worker: string;
  readonly machine: string;
  /** Identifies the SSD folder. An index of another folder is useless and is set aside. */
  readonly store: string;
}

/** Progress of a run, committed together with the rows. */
export interface RunProgress {
  readonly incarnation: bigint | null;
  readonly flushedSequence: number;
  readonly clean: boolean;
  /** Whether the index has a row of every block that was on SSD at the end of recovery. */
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
  /** Milliseconds since 1970, for the name of a file that is set aside. */
  readonly wallMs: number;
  /** Time for which another process may keep the file locked before it is set aside. */
  readonly busyMs: number;
  /**
   * Whether this repeats an open that failed. The caller continued with an empty index, so a file
   * found now is set aside.
   */
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
  /** Encoded records, `length` bytes of them. */
  readonly changes: ArrayBuffer | null;
  readonly length: number;
  /** Null: unchanged. */
  readonly lastSeen: LedgerContents["lastSeen"];
  readonly durable: boolean;
}

/** Requests from the main thread. Each is answered once, in order. */
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
      /** The rows as encoded records, `length` bytes of them. */
      readonly contents: ArrayBuffer;
      readonly length: number;
      readonly lastSeen: LedgerContents["lastSeen"];
      readonly setAside: SetAside | null;
    }
  | { readonly kind: "blocks"; readonly rows: BlockRows | null }
  | { readonly kind: "aliases"; readonly rows: readonly AliasRow[] | null }
  | { readonly kind: "committed"; readonly rows: number; readonly changes: ArrayBuffer | null }
  | { readonly kind: "closed" }
  /** The disk refused for now. The answer to a commit returns its changes. */
  | { readonly kind: "failed"; readonly why: string; readonly changes: ArrayBuffer | null };
