import type { RouterId } from "./router-id.ts";

/** How far a request is. */
export interface Progress {
  readonly isPrefilling: boolean;
  readonly outputBlocks: number;
}

interface Owned extends Progress {
  readonly router: RouterId;
  /** Counts up with each entry: what came before something is told by it. */
  readonly number: number;
}

/** How many requests a router answers for, and what they and their progress come to. */
export interface OwnedSum {
  readonly requests: number;
  readonly mix: bigint;
}

const NONE: OwnedSum = { requests: 0, mix: 0n };
const BEGUN: Progress = { isPrefilling: true, outputBlocks: 0 };

/**
 * Which router answers for each live request, and how far that is: whoever spoke of it last. Sums
 * by router let two see whether they count the same.
 */
export class OwnerBook {
  readonly #owners = new Map<string, Owned>();
  readonly #sums = new Map<RouterId, OwnedSum>();
  #numbers = 0;

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

  progressOf(id: string): Progress {
    return this.#owners.get(id) ?? BEGUN;
  }

  /** A request that begins. */
  begin(id: string, router: RouterId): void {
    this.delete(id);
    this.#set(id, { router, number: ++this.#numbers, ...BEGUN });
  }

  /** Progress only ever grows; the router is another where that one goes on with it. */
  advance(id: string, router: RouterId, to: Partial<Progress>): void {
    const owned = this.#owners.get(id);
    if (owned === undefined) return;
    const isPrefilling = owned.isPrefilling && (to.isPrefilling ?? true);
    const outputBlocks = Math.max(owned.outputBlocks, to.outputBlocks ?? 0);
    const number = owned.router === router ? owned.number : ++this.#numbers;
    // Entries stand in the order of their numbers.
    if (number !== owned.number) this.delete(id);
    else this.#count(id, owned, -1);
    this.#set(id, { router, number, isPrefilling, outputBlocks });
  }

  delete(id: string): void {
    const owned = this.#owners.get(id);
    if (owned === undefined) return;
    this.#owners.delete(id);
    this.#count(id, owned, -1);
  }

  sumOf(router: RouterId): OwnedSum {
    return this.#sums.get(router) ?? NONE;
  }

  /** Ids of one router, the earliest entries first, with numbers in (after, upTo]. */
  *idsOf(router: RouterId, after = 0, upTo = this.#numbers): Generator<[string, number]> {
    for (const [id, owned] of this.#owners) {
      if (owned.number > upTo) return;
      if (owned.router === router && owned.number > after) yield [id, owned.number];
    }
  }

  #set(id: string, owned: Owned): void {
    this.#owners.set(id, owned);
    this.#count(id, owned, 1);
  }

  #count(id: string, owned: Owned, by: 1 | -1): void {
    const { router, isPrefilling, outputBlocks } = owned;
    const sum = this.sumOf(router);
    const hash = Bun.hash.xxHash3(`${id} ${isPrefilling} ${outputBlocks}`);
    const next = { requests: sum.requests + by, mix: sum.mix ^ hash };
    if (next.requests === 0) this.#sums.delete(router);
    else this.#sums.set(router, next);
  }
}
