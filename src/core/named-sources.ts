import { loopTurns, type TurnBudget, type TurnSource } from "./turn-budget.ts";

/**
 * A source for each name: an address, a peer, a subject. Bounded, since every source that works
 * makes the others wait: a name that comes while all are at work shares one with those that came
 * too late.
 */
export class NamedSources {
  readonly #budget: TurnBudget;
  readonly #max: number;
  /** The name that was used longest ago first. */
  readonly #sources = new Map<string, TurnSource>();
  readonly #shared: TurnSource;

  constructor(max: number, budget: TurnBudget = loopTurns) {
    [this.#max, this.#budget, this.#shared] = [max, budget, budget.source()];
  }

  of(name: string): TurnSource {
    const known = this.#sources.get(name);
    if (known === undefined && this.#sources.size >= this.#max && !this.#dropIdle()) {
      return this.#shared;
    }
    const source = known ?? this.#budget.source();
    this.#sources.delete(name);
    this.#sources.set(name, source);
    return source;
  }

  #dropIdle(): boolean {
    for (const [name, source] of this.#sources) {
      if (source.isIdle) return this.#sources.delete(name);
    }
    return false;
  }
}
