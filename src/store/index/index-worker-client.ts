import { type ErrorCode, HearthError } from "../../core/index.ts";
import type { AliasRow, BlockRows } from "./block-index.ts";
import type { LedgerChange, LedgerContents } from "./retention/retention-ledger.ts";

/**
 * In the source tree the worker is beside this file. In the executable this module is at the root,
 * and the worker is an entry point at its path below `src`.
 */
const isInExecutable = import.meta.url.includes("/$bunfs/");
const WORKER = isInExecutable ? "./store/index/index-worker.ts" : "./index-worker.ts";

/**
 * Connection to the worker thread of one database file. The worker answers requests in order. If
 * the worker has ended, every request is answered with `failed`.
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

  /**
   * Starts a worker and lets it open the file. Answer `failed`: the disk does not allow the open at
   * present. Throws HearthError if the worker refuses, and ABORTED if the signal fires.
   */
  static async open(
    order: OpenOrder,
    signal: AbortSignal | undefined,
  ): Promise<{ readonly worker: IndexWorkerClient; readonly answer: Opened }> {
    const worker = new IndexWorkerClient();
    const onAbort = () => worker.end();
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      const answer = await worker.ask(order);
      if (signal?.aborted) throw new HearthError("ABORTED", "opening the index was aborted");
      if (answer.kind === "opened" || answer.kind === "failed") return { worker, answer };
      if (answer.kind === "refused") {
        throw new HearthError(answer.code, answer.message, { fix: answer.fix });
      }
      throw new HearthError("INTERNAL", `unexpected answer of the index worker: ${answer.kind}`);
    } catch (thrown) {
      worker.end();
      throw thrown;
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
  }

  /** Reason why the worker has ended; null while it runs. */
  get gone(): string | null {
    return this.#gone;
  }

  ask(order: Order): Promise<Answer> {
    if (this.#gone !== null) return Promise.resolve(failed(this.#gone));
    const columns = order.kind === "commit" && "columns" in order.changes && order.changes.columns;
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
      this.#worker.postMessage(order, columns ? [columns] : []);
    });
  }

  /**
   * Returns the next rows of a table as they were when the file was opened; null at the end. Throws
   * INDEX_FAILED on a failure, because a load that ends early would look like a smaller table.
   */
  async next<Table extends keyof Pages>(table: Table): Promise<Pages[Table] | null> {
    const answer = await this.ask({ kind: "next", table });
    if (answer.kind === "page") return answer.page as Pages[Table] | null;
    throw new HearthError("INDEX_FAILED", answer.kind === "failed" ? answer.why : answer.kind);
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
  return { kind: "failed", why, columns: null };
}

/** Identifies the agent that owns an index. */
export interface IndexOwner {
  readonly worker: string;
  readonly machine: string;
  /** Identifies the SSD folder. An index of another folder is useless and is set aside. */
  readonly store: string;
}

/** Progress of a run of the agent, committed together with the rows. */
export interface RunProgress {
  readonly incarnation: bigint | null;
  readonly flushedSequence: number;
  readonly clean: boolean;
  /** True if the index has a row for every block that was on SSD at the end of recovery. */
  readonly complete: boolean;
}

export interface SetAside {
  readonly path: string;
  readonly why: string;
}

export interface OpenOrder {
  readonly kind: "open";
  readonly file: "index" | "ledger";
  readonly folder: string;
  /** Owner of the file. The retention ledger does not compare `store`. */
  readonly owner: IndexOwner;
  readonly incarnation: bigint;
  /** Unix time in milliseconds, for the name of a file that is set aside. */
  readonly wallMs: number;
  /**
   * Milliseconds for which another process may keep the file locked. After that the file is set
   * aside.
   */
  readonly busyMs: number;
  /**
   * True if this repeats an open that failed. The agent has continued with an empty file since, so
   * a file that exists now is set aside.
   */
  readonly isLate: boolean;
}

export interface IndexChanges {
  /** Memory of a `ChangeBatch` with `count` rows. It is transferred to the worker. */
  readonly columns: ArrayBuffer | null;
  readonly count: number;
  readonly progress: RunProgress;
}

export interface LedgerChanges {
  readonly rows: readonly LedgerChange[];
  /** Time to record in the ledger; null if it has not changed. */
  readonly lastSeen: LedgerContents["lastSeen"];
}

/** Type of a page of rows for each table. */
interface Pages {
  readonly blocks: BlockRows;
  readonly aliases: readonly AliasRow[];
  /** All rows of the retention ledger. */
  readonly ledger: readonly LedgerChange[];
}

export interface CommitOrder {
  readonly kind: "commit";
  readonly changes: IndexChanges | LedgerChanges;
  readonly durable: boolean;
}

/** Requests from the main thread to the worker. The worker answers each once, in order. */
export type Order =
  | OpenOrder
  | { readonly kind: "next"; readonly table: keyof Pages }
  | CommitOrder
  | { readonly kind: "close" };

export type Answer =
  | {
      readonly kind: "opened";
      /** Set for the block index only. */
      readonly previous: RunProgress | null;
      /** Set for the retention ledger only. */
      readonly lastSeen: LedgerContents["lastSeen"];
      readonly rows: number;
      readonly setAside: SetAside | null;
    }
  | {
      readonly kind: "refused";
      readonly code: ErrorCode;
      readonly message: string;
      readonly fix: string;
    }
  | { readonly kind: "page"; readonly page: Pages[keyof Pages] | null }
  | { readonly kind: "committed"; readonly rows: number; readonly columns: ArrayBuffer | null }
  | { readonly kind: "closed" }
  /** The disk refused the operation at present. The answer to a commit returns its columns. */
  | { readonly kind: "failed"; readonly why: string; readonly columns: ArrayBuffer | null };

export type Opened = Extract<Answer, { kind: "opened" | "failed" }>;
