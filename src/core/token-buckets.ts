/** A bucket that is full again and its owner's silence are the same: it may be forgotten. */
interface Bucket {
  tokens: number;
  atMs: number;
}

const BUCKETS_MAX = 4_096;

/**
 * A rate for each sender: an issuer, an account, a subject. The buckets are bounded: a sender that
 * comes while all are in use shares one with the others that came too late, so that new names win
 * nothing.
 */
export class TokenBuckets {
  /** Those used longest ago first. */
  readonly #buckets = new Map<string, Bucket>();
  readonly #shared: Bucket = { tokens: 0, atMs: Number.NEGATIVE_INFINITY };

  /** Whether one more may come at `nowMs` (monotonic), at `perSecond`, `burst` at once. */
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
