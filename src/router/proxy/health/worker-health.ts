import type { WorkerId } from "../../../core/index.ts";
import type { WorkerTable } from "../../index.ts";
import { type ProbeParts, ServerProbe } from "./server-probe.ts";

export interface WorkerHealthOptions extends ProbeParts {
  readonly table: WorkerTable;
  /** Between two questions to a server; null: none is asked. */
  readonly everyMs: number | null;
  /** A worker is left out, with the reason, or used again, with null. */
  readonly onChange: (worker: WorkerId, why: string | null) => void;
}

/** Which workers are left out because their servers do not answer health checks. */
export class WorkerHealth implements AsyncDisposable {
  readonly #options: WorkerHealthOptions;
  readonly #probes = new Map<string, ServerProbe>();
  readonly #listeners = new Set<() => void>();
  readonly #closing = new Set<Promise<void>>();
  readonly #timer: Disposable | null;
  #out: ReadonlyMap<WorkerId, string> = new Map();
  /** How often a worker was left out, since the start. */
  times = 0;

  constructor(options: WorkerHealthOptions) {
    this.#options = options;
    const { everyMs, clock } = options;
    this.#timer = everyMs === null ? null : clock.every(everyMs, () => this.#look());
    if (everyMs !== null) this.#look();
  }

  /** Those that must not be chosen while others are there. */
  get out(): ReadonlyMap<WorkerId, string> {
    return this.#out;
  }

  /** Processes of engines that answer pings. */
  get pulses(): number {
    return [...this.#probes.values()].reduce((sum, { pulses }) => sum + pulses, 0);
  }

  /** Calls it after each change, until disposed; it must not throw. */
  listen(listener: () => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#timer?.[Symbol.dispose]();
    for (const url of [...this.#probes.keys()]) this.#forget(url);
    await Promise.all(this.#closing);
  }

  #look(): void {
    const urls = new Set<string>();
    for (const { url, state } of this.#options.table.targets) {
      if (url !== null && state !== "gone") urls.add(url);
    }
    for (const url of this.#probes.keys()) if (!urls.has(url)) this.#forget(url);
    for (const url of urls) {
      if (this.#probes.has(url)) continue;
      const probe = new ServerProbe(url, this.#options, () => this.#changed());
      this.#probes.set(url, probe);
    }
    for (const probe of this.#probes.values()) void probe.look();
    this.#changed();
  }

  #forget(url: string): void {
    const probe = this.#probes.get(url);
    if (probe === undefined) return;
    this.#probes.delete(url);
    const closing = probe[Symbol.asyncDispose]().finally(() => this.#closing.delete(closing));
    this.#closing.add(closing);
  }

  /** A worker with several ranks has one server; each rank of a silent process is left out. */
  #changed(): void {
    const out = new Map<WorkerId, string>();
    for (const { url, worker } of this.#options.table.targets) {
      const why = url === null ? null : (this.#probes.get(url)?.why ?? null);
      if (why !== null) out.set(worker, why);
    }
    const before = this.#out;
    this.#out = out;
    let isOther = false;
    for (const [worker, why] of out) {
      if (before.has(worker)) continue;
      isOther = true;
      this.times++;
      this.#options.onChange(worker, why);
    }
    for (const worker of before.keys()) {
      if (out.has(worker)) continue;
      isOther = true;
      this.#options.onChange(worker, null);
    }
    if (isOther) for (const listener of [...this.#listeners]) listener();
  }
}
