import type { Clock, WorkerId } from "../../../core/index.ts";
import type { RequestEnd } from "../observer.ts";

const FIRST_MS = 1_000;
const LONGEST_MS = 30_000;
const WORKERS_MAX = 4_096;
const CLIENT_ERROR = 400;
/** Different requests that a worker must fail in a row: one alone may be what breaks it. */
export const REQUESTS_MAX = 5;

interface Down {
  readonly untilMs: number;
  readonly forMs: number;
  /** One request tries it until then. */
  readonly isTried: boolean;
}

/**
 * Workers that could not be connected to, or failed different requests in a row: left alone for a
 * second, then for twice as long each time they fail again, up to half a minute. After each rest a
 * single request tries the worker.
 */
export class DownWorkers {
  readonly #clock: Clock;
  readonly #down = new Map<WorkerId, Down>();
  /** Hashes of the requests that a worker failed since it last finished one. */
  readonly #broken = new Map<WorkerId, Set<bigint>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A request goes to it: after a rest the others stay away until this one has an answer. */
  tried(worker: WorkerId): void {
    const nowMs = this.#clock.monotonicMs();
    const down = this.#down.get(worker);
    if (down === undefined || down.untilMs > nowMs) return;
    this.#down.set(worker, { ...down, untilMs: nowMs + down.forMs, isTried: true });
  }

  /** It could not be connected to. */
  failed(worker: WorkerId): void {
    const nowMs = this.#clock.monotonicMs();
    const before = this.#down.get(worker);
    if (before !== undefined && before.untilMs > nowMs && !before.isTried) return;
    const forMs = before === undefined ? FIRST_MS : Math.min(before.forMs * 2, LONGEST_MS);
    if (before === undefined) makeRoom(this.#down);
    this.#down.set(worker, { untilMs: nowMs + forMs, forMs, isTried: false });
  }

  /** It had a request and broke off, or answered that the fault is its own. */
  broke(worker: WorkerId, request: bigint): void {
    const requests = this.#broken.get(worker) ?? new Set();
    if (requests.size === 0) makeRoom(this.#broken);
    if (requests.size < REQUESTS_MAX) requests.add(request);
    this.#broken.set(worker, requests);
    const isTried = this.#down.get(worker)?.isTried === true;
    if (requests.size >= REQUESTS_MAX || isTried) this.failed(worker);
  }

  /** It answers. */
  worked(worker: WorkerId): void {
    this.#down.delete(worker);
  }

  /** An answer ended: it was broken off by the worker, or is whole. */
  ended(worker: WorkerId, request: bigint, how: RequestEnd["how"], status: number): void {
    if (how === "worker") this.broke(worker, request);
    else if (how === "done" && status < CLIENT_ERROR) this.#broken.delete(worker);
  }

  /** Those to leave alone now. */
  now(): WorkerId[] {
    if (this.#down.size === 0) return [];
    const nowMs = this.#clock.monotonicMs();
    return [...this.#down].flatMap(([worker, { untilMs }]) => (untilMs > nowMs ? [worker] : []));
  }
}

function makeRoom(workers: Map<WorkerId, unknown>): void {
  const [oldest] = workers.keys();
  if (workers.size >= WORKERS_MAX && oldest !== undefined) workers.delete(oldest);
}
