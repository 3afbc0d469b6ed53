import { type Clock, runInTurns, type TurnBudget, type TurnSource } from "../../core/index.ts";
import type { EngineMember } from "./engines.ts";
import type { Lookup } from "./lookup.ts";

/** Period in which waiting lookups are checked and send heartbeats if nothing comes. */
export const HEARTBEAT_MS = 25;

/** The lookups of one connection that wait for blocks. */
class Waiting {
  readonly lookups = new Set<Lookup>();
  readonly #source: TurnSource;
  /** Those to step next, with whether some time has passed since. */
  readonly #due = new Map<Lookup, boolean>();
  #isStepping = false;

  constructor(source: TurnSource) {
    this.#source = source;
  }

  due(lookup: Lookup, isTick: boolean): void {
    this.#due.set(lookup, isTick || this.#due.get(lookup) === true);
    if (this.#isStepping) return;
    this.#isStepping = true;
    void runInTurns(this.#source, this.#steps());
  }

  /** Each step is bounded; a lookup with more to look at comes again behind the others. */
  *#steps(): Generator<void, void> {
    for (const [lookup, isTick] of this.#due) {
      this.#due.delete(lookup);
      lookup.step(isTick);
      if (!lookup.isOver && lookup.hasMore) this.#due.set(lookup, false);
      yield;
    }
    this.#isStepping = false;
  }
}

/** The lookups of all connections that wait for blocks. */
export class Lookups {
  readonly #clock: Clock;
  readonly #turns: TurnBudget;
  readonly #waiting = new Map<EngineMember, Waiting>();
  #size = 0;
  #timer: Disposable | null = null;
  #isDue = false;
  /** Monotonic ms at which a block last came to RAM while something waited. */
  lastArrivalMs = 0;

  constructor(clock: Clock, turns: TurnBudget) {
    this.#clock = clock;
    this.#turns = turns;
  }

  get size(): number {
    return this.#size;
  }

  add(lookup: Lookup): void {
    const { member } = lookup;
    let waiting = this.#waiting.get(member);
    if (waiting === undefined) {
      waiting = new Waiting(this.#turns.source());
      this.#waiting.set(member, waiting);
    }
    waiting.lookups.add(lookup);
    this.#size++;
    this.#timer ??= this.#clock.every(HEARTBEAT_MS, () => this.#stepAll(true));
    // Last: it may be over when this returns.
    if (lookup.hasMore) waiting.due(lookup, false);
  }

  remove(lookup: Lookup): void {
    const waiting = this.#waiting.get(lookup.member);
    if (waiting?.lookups.delete(lookup) !== true) return;
    this.#size--;
    if (waiting.lookups.size === 0) this.#waiting.delete(lookup.member);
    if (this.#size > 0) return;
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
  }

  /** A block came to RAM: what waits is looked at behind the change that brought it. */
  arrived(): void {
    if (this.#size === 0) return;
    this.lastArrivalMs = this.#clock.monotonicMs();
    if (this.#isDue) return;
    this.#isDue = true;
    queueMicrotask(() => {
      this.#isDue = false;
      this.#stepAll(false);
    });
  }

  #stepAll(isTick: boolean): void {
    for (const waiting of [...this.#waiting.values()]) {
      for (const lookup of [...waiting.lookups]) waiting.due(lookup, isTick);
    }
  }
}
