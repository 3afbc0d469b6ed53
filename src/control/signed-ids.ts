const IDS_MAX = 2 ** 18;
const BUCKET_SECONDS = 60;

/**
 * Ids of signed commands that were taken, each until its `not_after`: whoever recorded one cannot
 * have it carried out again, also after the receipt is forgotten. Only commands whose signature was
 * right get in, so that nobody else can fill it.
 */
export class SignedIds {
  /** By the minute of `not_after`: a repetition has the same one, which is signed. */
  readonly #buckets = new Map<number, Set<string>>();
  #size = 0;

  has(scope: string, id: string, notAfterS: number): boolean {
    return this.#buckets.get(bucketOf(notAfterS))?.has(`${scope}\0${id}`) ?? false;
  }

  /** False if there is no room. `nowS`: seconds since 1970. */
  add(scope: string, id: string, notAfterS: number, nowS: number): boolean {
    this.#forgetBefore(nowS);
    if (this.#size >= IDS_MAX) return false;
    const bucket = bucketOf(notAfterS);
    const ids = this.#buckets.get(bucket) ?? new Set();
    this.#buckets.set(bucket, ids);
    this.#size -= ids.size;
    ids.add(`${scope}\0${id}`);
    this.#size += ids.size;
    return true;
  }

  /** The command was not carried out: it may come again. */
  remove(scope: string, id: string, notAfterS: number): void {
    if (this.#buckets.get(bucketOf(notAfterS))?.delete(`${scope}\0${id}`)) this.#size--;
  }

  /** A minute later than needed: the wall clock may be set back a little. */
  #forgetBefore(nowS: number): void {
    const oldest = bucketOf(nowS) - 1;
    for (const [bucket, ids] of this.#buckets) {
      if (bucket >= oldest) continue;
      this.#size -= ids.size;
      this.#buckets.delete(bucket);
    }
  }
}

function bucketOf(seconds: number): number {
  return Math.floor(seconds / BUCKET_SECONDS);
}
