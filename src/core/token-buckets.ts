/** A full bucket is equal to an unused one and can be removed. */
interface Bucket {
  tokens: number;
  atMs: number;
}

const BUCKETS_MAX = 4_096;

/**
 * Rate limits per sender: an issuer, an account, a subject. The number of buckets is bounded. If
 * all are in use, further senders share one bucket, so that a sender gains nothing from new names.
 */
export class TokenBuckets {
  /** Least recently used first. */
  readonly #buckets = new Map<string, Bucket>();
  readonly #shared: Bucket = { tokens: 0, atMs: Number.NEGATIVE_INFINITY };

  /**
   * Takes a token at `nowMs` (monotonic). Buckets refill at `perSecond` tokens per second up to
   * `burst`. False if none is left.
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
