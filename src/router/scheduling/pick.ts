import type { Clock, WorkerId } from "../../core/index.ts";
import type { AffinitySettings } from "../settings.ts";

/** Index of the chosen candidate. `draw` is the random number in [0, 1), null if none was drawn. */
export interface Picked {
  readonly candidateIndex: number;
  readonly draw: number | null;
  /** Number of candidates with the same cost. */
  readonly equals: number;
}

/**
 * Picks the lowest cost. Equal candidates have equal probability: a reservoir of size one, fed by a
 * single draw, in which the k-th equal candidate replaces the current one with probability 1/k.
 */
export function pickLowest(costs: readonly number[], draw: () => number): Picked {
  let [candidateIndex, equals] = [0, 1];
  let drawn: number | null = null;
  let left = 0;
  for (let at = 1; at < costs.length; at++) {
    if (costs[at]! < costs[candidateIndex]!) [candidateIndex, equals] = [at, 1];
    else if (costs[at] === costs[candidateIndex]) equals++;
  }
  const lowest = costs[candidateIndex]!;
  if (equals === 1) return { candidateIndex, draw: null, equals };
  drawn = draw();
  left = drawn;
  for (let at = candidateIndex + 1, seen = 1; at < costs.length; at++) {
    if (costs[at] !== lowest) continue;
    seen++;
    // The remainder of the draw is uniform again in either case.
    if (left * seen < 1) [candidateIndex, left] = [at, left * seen];
    else left = (left * seen - 1) / (seen - 1);
  }
  return { candidateIndex, draw: drawn, equals };
}

/** Softmax probabilities: p ∝ exp(−(cost − min) / ((max − min) · temperature)). */
export function softmax(costs: readonly number[], temperature: number): number[] {
  const [min, max] = extremes(costs);
  const range = (max - min) * temperature;
  const weights = costs.map((cost) => (range > 0 ? Math.exp(-(cost - min) / range) : 1));
  let sum = 0;
  for (const weight of weights) sum += weight;
  return weights.map((weight) => weight / sum);
}

export function pickSoftmax(
  costs: readonly number[],
  temperature: number,
  draw: () => number,
): Picked {
  const chances = softmax(costs, temperature);
  const drawn = draw();
  let [candidateIndex, reached] = [0, chances[0]!];
  while (reached <= drawn && candidateIndex < chances.length - 1)
    reached += chances[++candidateIndex]!;
  return { candidateIndex, draw: drawn, equals: 1 };
}

/** Probabilities at temperature 0: shared equally by the lowest costs. */
export function sharedByLowest(costs: readonly number[]): number[] {
  const [min] = extremes(costs);
  const equals = costs.filter((cost) => cost === min).length;
  return costs.map((cost) => (cost === min ? 1 / equals : 0));
}

function extremes(costs: readonly number[]): [number, number] {
  let [min, max] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const cost of costs) {
    if (cost < min) min = cost;
    if (cost > max) max = cost;
  }
  return [min, max];
}

interface SessionWorker {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly untilMs: number;
}

/** Longer session ids are not recorded. */
const NAME_MAX = 512;

/** Latest worker of each session. The least recently used sessions are evicted first. */
export class Affinity {
  readonly #clock: Clock;
  readonly #settings: AffinitySettings;
  readonly #workers = new Map<string, SessionWorker>();

  constructor(clock: Clock, settings: AffinitySettings) {
    this.#clock = clock;
    this.#settings = settings;
  }

  get sessions(): number {
    return this.#workers.size;
  }

  find(session: string): SessionWorker | null {
    const known = this.#workers.get(session);
    if (known === undefined) return null;
    if (known.untilMs > this.#clock.monotonicMs()) return known;
    this.#workers.delete(session);
    return null;
  }

  remember(session: string, worker: WorkerId, rank: number): void {
    const { ttlMs, sessionsMax } = this.#settings;
    if (ttlMs <= 0 || sessionsMax <= 0 || session.length > NAME_MAX) return;
    this.#workers.delete(session);
    if (this.#workers.size >= sessionsMax) this.#workers.delete(this.#workers.keys().next().value!);
    this.#workers.set(session, { worker, rank, untilMs: this.#clock.monotonicMs() + ttlMs });
  }
}
