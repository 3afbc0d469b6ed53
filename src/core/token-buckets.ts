/** State of one rate limit. A full bucket behaves like a new one, so it can be removed. */
interface Bucket {
  tokens: number;
  atMs: number;
}

const BUCKETS_MAX = 4_096;

/**
 * Rate limits per sender (an issuer, an account or a subject). The number of buckets is bounded. If
 * all are in use, further senders share one bucket, so that a sender gains nothing by using new
 * names.
 */
export class TokenBuckets {
  /** Buckets by sender, the least recently used one first. */
  readonly #buckets = new Map<string, Bucket>();
  readonly #shared: Bucket = { tokens: 0, atMs: Number.NEGATIVE_INFINITY };

  /**
   * Takes one token at the monotonic time `nowMs`. A bucket gains `perSecond` tokens per second, up
   * to `burst`. Returns false if no token is left.
   */
  take(name: string, nowMs: number, perSecond: number, burst: number): boolean {
    const bucket = this.#bucketOf(name, nowMs, perSecond, burst);
    bucket.tokens = refilled(bucket, nowMs, perSecond, burst);
    bucket.atMs = nowMs;
    if (bucket.tokens < 1) return false;
    bucket.tokens--;
    return true;
  }

  #bucketOf(name: string, nowMs: number, perSecond: number, burst: number): Bucket {
    const known = this.#buckets.get(name);
    if (known !== undefined) {
      this.#buckets.delete(name);
      this.#buckets.set(name, known);
      return known;
    }
    if (this.#buckets.size >= BUCKETS_MAX) {
      const [oldest, bucket] = this.#buckets.entries().next().value!;
      if (refilled(bucket, nowMs, perSecond, burst) < burst) return this.#shared;
      this.#buckets.delete(oldest);
    }
    const fresh = { tokens: burst, atMs: nowMs };
    this.#buckets.set(name, fresh);
    return fresh;
  }
}

function refilled(bucket: Bucket, nowMs: number, perSecond: number, burst: number): number {
  const gained = ((nowMs - bucket.atMs) / 1_000) * perSecond;
  return Math.min(burst, bucket.tokens + gained);
}
