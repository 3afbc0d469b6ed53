import type { Clock } from "../core/index.ts";
import { HEALTH_CODE_NAMES, HEALTH_CODES, type HealthCode } from "./health-codes.ts";
import type { Logger } from "./logger.ts";

/** One thing that is the matter now. */
export interface HealthProblem {
  readonly code: HealthCode;
  readonly severity: "warn" | "error";
  /** When it began; of the monotonic clock. */
  readonly sinceMs: number;
  /** What is the matter, the same words for all of this code. */
  readonly meaning: string;
  /** This case: paths, counts, the kernel's words. */
  readonly details: string;
  readonly fix: string;
}

export interface HealthCount {
  readonly code: HealthCode;
  readonly isRaised: boolean;
  /** Times it was raised since the start; raising what is raised does not count. */
  readonly raised: number;
}

export interface RaiseOptions {
  /** It ends by itself when it was not raised again for so long; else only `clear` ends it. */
  readonly forMs?: number;
}

/**
 * What is the matter with this agent, by code. The parts that find out raise and clear; a change is
 * logged and counted once, however often it is told.
 */
export interface Health extends Disposable {
  /** Raises it; where it is raised already, only its details and its end change. */
  raise(code: HealthCode, details: string, options?: RaiseOptions): void;
  clear(code: HealthCode): void;
  isRaised(code: HealthCode): boolean;
  /** Errors first; the oldest first within a severity. */
  list(): HealthProblem[];
  /** All codes. */
  counts(): HealthCount[];
  /** Nothing is timed any more. */
  [Symbol.dispose](): void;
}

export interface HealthOptions {
  readonly clock: Clock;
  readonly log: Pick<Logger, "log">;
}

const SEVERITIES = ["error", "warn"];

export function createHealth(options: HealthOptions): Health {
  return new HealthRegister(options);
}

class HealthRegister implements Health {
  readonly #clock: Clock;
  readonly #log: Pick<Logger, "log">;
  readonly #problems = new Map<HealthCode, HealthProblem>();
  readonly #ends = new Map<HealthCode, Disposable>();
  readonly #raised = new Map<HealthCode, number>();

  constructor({ clock, log }: HealthOptions) {
    this.#clock = clock;
    this.#log = log;
  }

  raise(code: HealthCode, details: string, { forMs }: RaiseOptions = {}): void {
    const spec = HEALTH_CODES[code];
    const known = this.#problems.get(code);
    const sinceMs = known?.sinceMs ?? this.#clock.monotonicMs();
    this.#problems.set(code, { code, ...spec, sinceMs, details });
    this.#stopTimer(code);
    if (forMs !== undefined) {
      this.#ends.set(
        code,
        this.#clock.after(forMs, () => this.clear(code)),
      );
    }
    if (known !== undefined) return;
    this.#raised.set(code, (this.#raised.get(code) ?? 0) + 1);
    this.#log.log(spec.severity, spec.meaning, { code, details, fix: spec.fix });
  }

  clear(code: HealthCode): void {
    const problem = this.#problems.get(code);
    if (problem === undefined) return;
    this.#stopTimer(code);
    this.#problems.delete(code);
    const lastedMs = this.#clock.monotonicMs() - problem.sinceMs;
    const seconds = Number((lastedMs / 1_000).toFixed(3));
    this.#log.log("info", "what was the matter is over", { code, seconds });
  }

  isRaised(code: HealthCode): boolean {
    return this.#problems.has(code);
  }

  list(): HealthProblem[] {
    const rank = ({ severity }: HealthProblem) => SEVERITIES.indexOf(severity);
    return [...this.#problems.values()].sort((a, b) => rank(a) - rank(b) || a.sinceMs - b.sinceMs);
  }

  counts(): HealthCount[] {
    return HEALTH_CODE_NAMES.map((code) => ({
      code,
      isRaised: this.#problems.has(code),
      raised: this.#raised.get(code) ?? 0,
    }));
  }

  [Symbol.dispose](): void {
    for (const code of this.#ends.keys()) this.#stopTimer(code);
  }

  #stopTimer(code: HealthCode): void {
    this.#ends.get(code)?.[Symbol.dispose]();
    this.#ends.delete(code);
  }
}
