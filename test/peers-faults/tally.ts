import type { OutcomeName } from "../store/names.ts";
import type { StoreEngine } from "../store/store-engine.ts";

/** Result of one phase. */
export interface Result {
  readonly transport: string;
  readonly phase: string;
  readonly pulls: number;
  readonly blocks: number;
  readonly ok: number;
  readonly missed: number;
  readonly late: number;
  readonly wrongBytes: number;
  readonly corruptSeen: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Violated promises, as messages. */
  readonly problems: readonly string[];
}

/** Counts the answers to a phase's requests, and verifies every byte. */
export class Tally {
  readonly outcomes = new Map<OutcomeName, number>();
  readonly problems: string[] = [];
  wrongBytes = 0;
  corruptSeen = 0;
  readonly #ms: number[] = [];

  /** One request of an engine; returns the number of blocks that arrived. */
  async fetch(engine: StoreEngine, names: readonly string[], deadlineMs: number): Promise<number> {
    const began = performance.now();
    const handles = await engine.fetch(names, { deadlineMs });
    const ms = performance.now() - began;
    this.#ms.push(ms);
    if (ms > deadlineMs + 1_000) this.problems.push(`an answer after ${Math.round(ms)} ms`);
    for (const handle of handles) {
      this.outcomes.set(handle.outcome, (this.outcomes.get(handle.outcome) ?? 0) + 1);
      if (handle.outcome === "ok" && !engine.proves(handle)) this.wrongBytes++;
    }
    const came = handles.filter(({ outcome }) => outcome === "ok");
    engine.release(came);
    return came.length;
  }

  get pulls(): number {
    return this.#ms.length;
  }

  quantile(of: number): number {
    const sorted = this.#ms.toSorted((a, b) => a - b);
    return sorted[Math.min(Math.ceil(sorted.length * of), sorted.length) - 1] ?? 0;
  }

  result(transport: string, phase: string): Result {
    const count = (...names: OutcomeName[]) =>
      names.reduce((sum, name) => sum + (this.outcomes.get(name) ?? 0), 0);
    const all = [...this.outcomes.values()].reduce((sum, one) => sum + one, 0);
    const { wrongBytes, corruptSeen } = this;
    const problems = [...new Set(this.problems)];
    if (wrongBytes > 0) problems.push(`${wrongBytes} blocks with wrong bytes`);
    return {
      ...{ transport, phase, pulls: this.pulls, blocks: all },
      ...{ ok: count("ok"), missed: all - count("ok", "late"), late: count("late") },
      ...{ wrongBytes, corruptSeen },
      p50Ms: this.quantile(0.5),
      p99Ms: this.quantile(0.99),
      problems,
    };
  }
}
