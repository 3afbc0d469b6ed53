import type { Clock } from "../core/index.ts";
import { API_REFUSALS, type ApiRefusal } from "../observability/index.ts";

/** Callers of one kind who were not let in. */
export interface RefusalNote {
  readonly code: ApiRefusal;
  /** Of the last one. */
  readonly address: string;
  /** How many there were since the note before, this one included. */
  readonly count: number;
}

/** Between two notes of one kind: whoever tries tokens is not to fill the log. */
const NOTE_EVERY_MS = 60_000;

/** Counts who is not let in, and tells of it: of each kind at most once a minute. */
export class Refusals {
  readonly #clock: Clock;
  readonly #tell: (note: RefusalNote) => void;
  readonly #counts = new Map<ApiRefusal, number>(API_REFUSALS.map((code) => [code, 0]));
  readonly #told = new Map<ApiRefusal, { readonly atMs: number; readonly count: number }>();

  constructor(clock: Clock, tell: (note: RefusalNote) => void) {
    this.#clock = clock;
    this.#tell = tell;
  }

  add(code: ApiRefusal, address: string): void {
    const count = this.#counts.get(code)! + 1;
    this.#counts.set(code, count);
    const nowMs = this.#clock.monotonicMs();
    const told = this.#told.get(code);
    if (told !== undefined && nowMs - told.atMs < NOTE_EVERY_MS) return;
    this.#told.set(code, { atMs: nowMs, count });
    this.#tell({ code, address, count: count - (told?.count ?? 0) });
  }

  /** Since the start. */
  counts(): ReadonlyMap<ApiRefusal, number> {
    return this.#counts;
  }
}
