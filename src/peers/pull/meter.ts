import type { Clock } from "../../core/index.ts";

/** A sample is taken after so many bytes, or where the other side has nothing more to do. */
const SAMPLE_BYTES = 1 << 20;
/** What is shorter says more of the way than of its width. */
const SAMPLE_BYTES_MIN = 16 << 10;
const SAMPLE_MS_MIN = 2;
/** Weight of a whole sample; shorter ones have less, but not less than this. */
const WEIGHT = 0.25;
const WEIGHT_MIN = 0.02;
/** Of the time of a request, at least so much carried bytes, however long the round trip is. */
const CARRYING_MIN = 0.1;
/** After so long without a sample nothing is known any more. */
const STALE_MS = 60_000;
/** One short block may have met anything: so much says what the way carries. */
const ENOUGH_BYTES = 1 << 20;
const ENOUGH_SAMPLES = 3;

/**
 * Bytes a second on one way to one peer, over the times in which something was under way. Requests
 * at the same time share it, so it is what the way carries, not what one request sees; the round
 * trip that comes before the first byte is left out.
 */
export class Meter {
  readonly #clock: Clock;
  readonly #rttMs: () => number | null;
  /** The next sample begins with a request, not in the middle of one. */
  #fresh = true;
  #users = 0;
  #sinceMs = 0;
  #bytes = 0;
  #goodput: number | null = null;
  #sampledMs = 0;
  /** Since nothing was known. */
  #sampledBytes = 0;
  #samples = 0;

  constructor(clock: Clock, rttMs: () => number | null) {
    this.#clock = clock;
    this.#rttMs = rttMs;
  }

  begin(): void {
    if (this.#users++ > 0) return;
    this.#sinceMs = this.#clock.monotonicMs();
    this.#bytes = 0;
    this.#fresh = true;
  }

  moved(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes >= SAMPLE_BYTES) this.#sample(SAMPLE_MS_MIN);
  }

  end(): void {
    if (--this.#users === 0 && this.#bytes >= SAMPLE_BYTES_MIN) this.#sample(0);
  }

  /** Of the latest pulls, however old; null before the first. */
  get latest(): number | null {
    return this.#goodput;
  }

  /** Null: not known, or so long ago that it may be otherwise now. */
  get goodput(): number | null {
    const old = this.#clock.monotonicMs() - this.#sampledMs > STALE_MS;
    return old ? null : this.#goodput;
  }

  /** Null as well where too little came to hold it against the peer. */
  get provenGoodput(): number | null {
    const isEnough = this.#sampledBytes >= ENOUGH_BYTES || this.#samples >= ENOUGH_SAMPLES;
    return isEnough ? this.goodput : null;
  }

  #sample(msMin: number): void {
    const nowMs = this.#clock.monotonicMs();
    const ms = nowMs - this.#sinceMs;
    if (ms < msMin) return;
    const rttMs = this.#fresh ? (this.#rttMs() ?? 0) : 0;
    const carryingMs = Math.max(ms - rttMs, ms * CARRYING_MIN, 0.05);
    const sample = (this.#bytes * 1_000) / carryingMs;
    const before = this.goodput;
    if (before === null) [this.#sampledBytes, this.#samples] = [0, 0];
    this.#sampledBytes += this.#bytes;
    this.#samples++;
    const weight = Math.max(WEIGHT * Math.min(this.#bytes / SAMPLE_BYTES, 1), WEIGHT_MIN);
    this.#goodput = before === null ? sample : before + (sample - before) * weight;
    this.#fresh = false;
    this.#sampledMs = nowMs;
    this.#sinceMs = nowMs;
    this.#bytes = 0;
  }
}
