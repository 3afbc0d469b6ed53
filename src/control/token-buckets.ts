/** A bucket that is full again and its owner's silence are the same: it may be forgotten. */
interface Bucket {
  tokens: number;
  atMs: number;
}

const ISSUERS_MAX = 4_096;

/**
 * So many commands a second for each issuer. The buckets are bounded: who comes when all are in use
 * shares one with the others who came too late, so that new names win nothing.
 */
export class TokenBuckets {
  /** Those used longest ago first. */
  readonly #buckets = new Map<string, Bucket>();
  readonly #shared: Bucket = { tokens: 0, atMs: Number.NEGATIVE_INFINITY };

  /** Whether one more may come at `nowMs` (monotonic), at `perSecond`, `burst` at once. */
  take(issuer: string, nowMs: number, perSecond: number, burst: number): boolean {
    const bucket = this.#bucketOf(issuer, nowMs, perSecond, burst);
    bucket.tokens = refilled(bucket, nowMs, perSecond, burst);
    bucket.atMs = nowMs;
    if (bucket.tokens < 1) return false;
    bucket.tokens--;
    return true;
  }

  #bucketOf(issuer: string, nowMs: number, perSecond: number, burst: number): Bucket {
    const known = this.#buckets.get(issuer);
    if (known !== undefined) {
      this.#buckets.delete(issuer);
      this.#buckets.set(issuer, known);
      return known;
    }
    if (this.#buckets.size >= ISSUERS_MAX) {
      const [oldest, bucket] = this.#buckets.entries().next().value!;
      if (refilled(bucket, nowMs, perSecond, burst) < burst) return this.#shared;
      this.#buckets.delete(oldest);
    }
    const fresh = { tokens: burst, atMs: nowMs };
    this.#buckets.set(issuer, fresh);
    return fresh;
  }
}

function refilled(bucket: Bucket, nowMs: number, perSecond: number, burst: number): number {
  const gained = ((nowMs - bucket.atMs) / 1_000) * perSecond;
  return Math.min(burst, bucket.tokens + gained);
}
