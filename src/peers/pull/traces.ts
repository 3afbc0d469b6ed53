import type { Clock } from "../../core/index.ts";
import type { PullOutcome, PullPriority, PullStep, PullTrace } from "./puller.ts";

const TRACES_MAX = 4_096;
const STEPS_MAX = 48;

/** What happens to one block, as it happens. */
export class Trace {
  readonly #clock: Clock;
  readonly #startedMs: number;
  readonly #startedWallMs: number;
  readonly #named: Pick<PullTrace, "key" | "digest" | "layer">;
  readonly #steps: PullStep[] = [];
  priority: PullPriority;
  #outcome: PullOutcome | null = null;
  #bytes = 0;

  constructor(
    clock: Clock,
    named: Pick<PullTrace, "key" | "digest" | "layer">,
    priority: PullPriority,
  ) {
    this.#clock = clock;
    this.#named = named;
    this.priority = priority;
    this.#startedMs = clock.monotonicMs();
    this.#startedWallMs = clock.wallMs();
  }

  get key(): string {
    return this.#named.key;
  }

  /** The last place is for how it ended. */
  step(what: string, more: Omit<PullStep, "ms" | "what"> = {}): void {
    if (this.#steps.length < STEPS_MAX - 1) this.#write(what, more);
  }

  end(outcome: PullOutcome, bytes: number, why: string): void {
    this.#write(why === "" ? outcome : `${outcome}: ${why}`, {});
    this.#outcome = outcome;
    this.#bytes = bytes;
  }

  told(): PullTrace {
    return {
      ...this.#named,
      priority: this.priority,
      startedWallMs: this.#startedWallMs,
      outcome: this.#outcome,
      bytes: this.#bytes,
      steps: [...this.#steps],
    };
  }

  #write(what: string, more: Omit<PullStep, "ms" | "what">): void {
    this.#steps.push({ ms: this.#clock.monotonicMs() - this.#startedMs, what, ...more });
  }
}

/** The latest pulls, for people. */
export class Traces {
  readonly #clock: Clock;
  readonly #ring: Trace[] = [];
  #next = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  begin(named: Pick<PullTrace, "key" | "digest" | "layer">, priority: PullPriority): Trace {
    const trace = new Trace(this.#clock, named, priority);
    this.#ring[this.#next++ % TRACES_MAX] = trace;
    return trace;
  }

  /** The newest first; of one key, or of all where null. */
  told(key: string | null): PullTrace[] {
    const told: PullTrace[] = [];
    for (let i = 1; i <= this.#ring.length; i++) {
      const trace = this.#ring[(this.#next - i) % TRACES_MAX]!;
      if (key === null || trace.key === key) told.push(trace.told());
    }
    return told;
  }
}
