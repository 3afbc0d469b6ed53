import type { RouterId } from "./router-id.ts";

interface Owned {
  readonly router: RouterId;
  /** Counts up with each entry: what came before something is told by it. */
  readonly number: number;
}

/**
 * Which router answers for each live request: whoever spoke of it last. By router there is a
 * digest of the ids, so that two can see whether they count the same requests.
 */
export class OwnerBook {
  readonly #hash: (id: string) => bigint;
  readonly #owners = new Map<string, Owned>();
  readonly #sums = new Map<RouterId, { requests: number; mix: bigint }>();
  #numbers = 0;

  constructor(hash: (id: string) => bigint) {
    this.#hash = hash;
  }

  get requests(): number {
    return this.#owners.size;
  }
  /** The number of the latest entry. */
  get latest(): number {
    return this.#numbers;
  }

  ownerOf(id: string): RouterId | null {
    return this.#owners.get(id)?.router ?? null;
  }

  set(id: string, router: RouterId): void {
    this.delete(id);
    this.#owners.set(id, { router, number: ++this.#numbers });
    this.#count(router, 1, id);
  }

  delete(id: string): void {
    const owned = this.#owners.get(id);
    if (owned === undefined) return;
    this.#owners.delete(id);
    this.#count(owned.router, -1, id);
  }

  sumOf(router: RouterId): { readonly requests: number; readonly mix: bigint } {
    return this.#sums.get(router) ?? { requests: 0, mix: 0n };
  }

  /** Ids of one router, the earliest entries first, with numbers in (after, upTo]. */
  *idsOf(router: RouterId, after = 0, upTo = this.#numbers): Generator<[string, number]> {
    for (const [id, owned] of this.#owners) {
      if (owned.number > upTo) return;
      if (owned.router === router && owned.number > after) yield [id, owned.number];
    }
  }

  #count(router: RouterId, by: 1 | -1, id: string): void {
    const sum = this.#sums.get(router) ?? { requests: 0, mix: 0n };
    sum.requests += by;
    sum.mix ^= this.#hash(id);
    if (sum.requests === 0) this.#sums.delete(router);
    else this.#sums.set(router, sum);
  }
}
