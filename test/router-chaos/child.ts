import { join } from "node:path";
import { CutProxy } from "./cut-proxy.ts";
import type { Order, RouterReport, RouterSpec, WorkerReport, WorkerSpec } from "./messages.ts";

const START_MS = 20_000;
const REPORT_MS = 5_000;

/** Seeds and incarnations of one life. */
export interface Life {
  readonly number: number;
  readonly seed: number;
}

/** A worker or a router as a process, with a way to NATS of its own. */
export class Child<Report extends WorkerReport | RouterReport> implements AsyncDisposable {
  readonly name: string;
  readonly proxy: CutProxy;
  readonly #specOf: (life: Life, url: string) => WorkerSpec | RouterSpec;
  readonly #reports = new Map<number, (report: Report | null) => void>();
  #process: Bun.Subprocess | null = null;
  #url = "";
  #lives = 0;
  #asked = 0;

  constructor(
    name: string,
    natsPort: () => number,
    specOf: (life: Life, url: string) => WorkerSpec | RouterSpec,
  ) {
    this.name = name;
    this.proxy = new CutProxy(natsPort);
    this.#specOf = specOf;
  }

  get pid(): number {
    return this.#process?.pid ?? 0;
  }

  async open(seed: number): Promise<void> {
    this.#url = `nats://127.0.0.1:${await this.proxy.listen()}`;
    await this.start(seed);
  }

  /** Resolves once it is connected. */
  async start(seed: number): Promise<void> {
    const spec = this.#specOf({ number: ++this.#lives, seed }, this.#url);
    const ready = Promise.withResolvers<void>();
    const child = Bun.spawn(["bun", join(import.meta.dir, `${spec.kind}-child.ts`)], {
      env: { ...process.env, CHAOS_SPEC: JSON.stringify(spec) },
      stdio: ["ignore", "inherit", "inherit"],
      ipc: (message) => {
        if (message === "ready") ready.resolve();
        else this.#reports.get((message as Report).id)?.(message as Report);
      },
    });
    this.#process = child;
    const late = setTimeout(() => ready.reject(new Error(`${this.name} is not up`)), START_MS);
    void child.exited.then((code) => ready.reject(new Error(`${this.name} ended: ${code}`)));
    await ready.promise.finally(() => clearTimeout(late));
  }

  order(order: Order): void {
    this.#process?.send(order);
  }

  /** Null: it did not answer. */
  report(full: boolean): Promise<Report | null> {
    const id = ++this.#asked;
    return new Promise((resolve) => {
      const end = (report: Report | null) => {
        clearTimeout(timer);
        this.#reports.delete(id);
        resolve(report);
      };
      const timer = setTimeout(() => end(null), REPORT_MS);
      this.#reports.set(id, end);
      this.order({ order: "report", id, full });
    });
  }

  async kill(): Promise<void> {
    const child = this.#process;
    this.#process = null;
    child?.kill("SIGKILL");
    await child?.exited;
  }

  /** It stands still, and goes on later. */
  freeze(): void {
    this.#process?.kill("SIGSTOP");
  }
  thaw(): void {
    this.#process?.kill("SIGCONT");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    await this.proxy[Symbol.asyncDispose]();
  }
}
