import type { Answer, Order } from "./protocol.ts";

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
