import { type ErrorCode, HearthError } from "../../core/index.ts";
import type { AliasRow, BlockRows } from "./block-index.ts";
import type { LedgerChange, LedgerContents } from "./retention/retention-ledger.ts";

/**
 * In the sources the worker is beside this file. In the executable this module is at the root, and
 * the worker is an entry point at its path below `src`.
 */
const isInExecutable = import.meta.url.includes("/$bunfs/");
const WORKER = isInExecutable ? "./store/index/index-worker.ts" : "./index-worker.ts";

/**
 * Connection to the worker thread of one database file. Answers arrive in the order of the
 * requests. Once the worker is gone, every request is answered with `failed`.
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
   * Starts a worker and sends it the open order. `failed`: the disk does not allow the open. Throws
   * HearthError if the worker refuses, ABORTED if the signal fires.
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

  /** Reason why the worker is gone. Null while it lives. */
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
   * The next rows of a table as they were when the file was opened; null at the end. A failure
   * throws INDEX_FAILED, because a truncated load would look like a smaller table.
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
  readonly file: "index" | "ledger";
  readonly folder: string;
  /** `store` is not compared for the ledger. */
  readonly owner: IndexOwner;
  readonly incarnation: bigint;
  /** Milliseconds since 1970, for the name of a file that is set aside. */
  readonly wallMs: number;
  /** Time for which another process may keep the file locked before it is set aside. */
  readonly busyMs: number;
  /**
   * Whether this repeats an open that failed. The caller continued with an empty file, so a file
   * found now is set aside.
   */
  readonly isLate: boolean;
}

export interface IndexChanges {
  /** A `ChangeBatch`, which is transferred, with `count` rows. */
  readonly columns: ArrayBuffer | null;
  readonly count: number;
  readonly progress: RunProgress;
}

export interface LedgerChanges {
  readonly rows: readonly LedgerChange[];
  /** Null: unchanged. */
  readonly lastSeen: LedgerContents["lastSeen"];
}

/** Pages of rows by table. */
interface Pages {
  readonly blocks: BlockRows;
  readonly aliases: readonly AliasRow[];
  /** All rows of the ledger. */
  readonly ledger: readonly LedgerChange[];
}

export interface CommitOrder {
  readonly kind: "commit";
  readonly changes: IndexChanges | LedgerChanges;
  readonly durable: boolean;
}

/** Requests from the main thread. Each is answered once, in order. */
export type Order =
  | OpenOrder
  | { readonly kind: "next"; readonly table: keyof Pages }
  | CommitOrder
  | { readonly kind: "close" };

export type Answer =
  | {
      readonly kind: "opened";
      /** The index alone. */
      readonly previous: RunProgress | null;
      /** The ledger alone. */
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
  /** The disk refused for now. The answer to a commit returns its columns. */
  | { readonly kind: "failed"; readonly why: string; readonly columns: ArrayBuffer | null };

export type Opened = Extract<Answer, { kind: "opened" | "failed" }>;
