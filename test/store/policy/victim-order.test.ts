import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  NO_NODE,
  type NodeId,
  type Random,
  randomBelow,
  seededRandom,
} from "../../../src/core/index.ts";
import {
  type CreateOrder,
  createHearthOrder,
  createLruOrder,
  type VictimOrder,
} from "../../../src/store/index.ts";

const BLOCKS = 120;
const SEED = 20_261_122;
const ORDERS: Readonly<Record<string, CreateOrder>> = {
  lru: createLruOrder,
  hearth: createHearthOrder,
};

const ARRAYS = [
  "Uint8Array",
  "Uint16Array",
  "Uint32Array",
  "Int32Array",
  "Float32Array",
  "Float64Array",
] as const;

/** The bytes of the typed arrays that `work` creates. */
function bytesCreated(work: () => void): number {
  let bytes = 0;
  const globals: Record<string, unknown> = globalThis as never;
  const originals = ARRAYS.map((name) => globalThis[name] as new (...args: never[]) => Uint8Array);
  const construct = (target: (typeof originals)[0], args: never[]) => {
    const array: Uint8Array = Reflect.construct(target, args);
    if (!((args[0] as unknown) instanceof ArrayBuffer)) bytes += array.byteLength;
    return array;
  };
  for (const [i, name] of ARRAYS.entries()) {
    globals[name] = new Proxy(originals[i]!, { construct });
  }
  try {
    work();
  } finally {
    for (const [i, name] of ARRAYS.entries()) globals[name] = originals[i];
  }
  return bytes;
}

/** An order and a literal model of the calls it received. Ids are block numbers plus 1. */
class Owner {
  readonly order: VictimOrder;
  readonly resident = new Set<number>();
  readonly locks = new Map<number, number>();
  readonly #parents: readonly number[];
  readonly #random: Random;

  constructor(create: CreateOrder, seed: number) {
    const random = seededRandom(seed);
    this.#random = random;
    this.#parents = Array.from({ length: BLOCKS + 1 }, (_, id) =>
      id < 2 || random.u32() % 12 === 0 ? 0 : Math.max(1, id - 1 - randomBelow(random, 4)),
    );
    const view = {
      parentOf: (id: NodeId) => this.#parents[id]! as NodeId,
      fingerprintOf: (id: NodeId) => Math.imul(id, 0x9e37_79b1) >>> 0,
    };
    this.order = create(view, BLOCKS);
  }

  pathTo(id: number): NodeId[] {
    const path: NodeId[] = [];
    for (let step = id; step !== 0; step = this.#parents[step]!) path.unshift(step as NodeId);
    return path;
  }

  /** Evictable ids by the contract: resident, unprotected, without resident descendants. */
  leaves(): number[] {
    const inner = new Set<number>();
    for (const id of this.resident)
      for (const above of this.pathTo(id).slice(0, -1)) inner.add(above);
    const isFree = (id: number) => !this.locks.has(id) && !inner.has(id);
    return [...this.resident].filter(isFree);
  }

  /** A request as the agent makes it: used blocks in pieces, then evictions, then stored blocks. */
  request(id: number, piece: number, capacity: number): void {
    const path = this.pathTo(id);
    const miss = path.findIndex((block) => !this.resident.has(block));
    const hits = miss < 0 ? path.length : miss;
    for (let at = 0; at < hits; at += piece)
      this.order.used(path.slice(at, Math.min(hits, at + piece)));
    for (let at = hits; at < path.length; at += piece) {
      const blocks = path.slice(at, at + piece).filter((block) => !this.resident.has(block));
      if (at > 0) this.lock(path[at - 1]!);
      const stored = blocks.filter(() => this.makeRoom(capacity - blocks.length));
      for (const block of stored) this.resident.add(block);
      this.order.stored(stored);
      if (at > 0) this.unlock(path[at - 1]!);
    }
  }

  makeRoom(below: number): boolean {
    while (this.resident.size > Math.max(0, below)) {
      const victim = this.order.victim();
      if (victim === NO_NODE) return false;
      this.remove(victim);
    }
    return true;
  }

  remove(id: number): void {
    this.resident.delete(id);
    this.order.removed(id as NodeId);
  }

  /** Protects the block and its ancestors, as the table does. */
  lock(id: number): void {
    for (const step of this.pathTo(id).reverse()) {
      const locks = this.locks.get(step) ?? 0;
      this.locks.set(step, locks + 1);
      if (locks === 0) this.order.protect(step);
    }
  }

  unlock(id: number): void {
    for (const step of this.pathTo(id).reverse()) {
      const locks = this.locks.get(step)! - 1;
      if (locks > 0) this.locks.set(step, locks);
      else {
        this.locks.delete(step);
        this.order.unprotect(step);
      }
    }
  }

  purgeOne(): void {
    const free = [...this.resident].filter((id) => !this.locks.has(id));
    if (free.length > 0) this.remove(free[randomBelow(this.#random, free.length)]!);
  }
}

const step = fc.record({
  what: fc.constantFrom("request", "request", "request", "lock", "unlock", "purge", "evict"),
  id: fc.integer({ min: 1, max: BLOCKS }),
  piece: fc.integer({ min: 1, max: 9 }),
});

function run(
  owner: Owner,
  held: number[],
  { what, id, piece }: { what: string; id: number; piece: number },
) {
  if (what === "request") owner.request(id, piece, 30);
  else if (what === "lock" && held.length < 4) {
    owner.lock(id);
    held.push(id);
  } else if (what === "unlock" && held.length > 0) owner.unlock(held.shift()!);
  else if (what === "purge") owner.purgeOne();
  else if (what === "evict") owner.makeRoom(owner.resident.size - 1);
}

describe.each(Object.keys(ORDERS))("%s", (name) => {
  test("returns an unprotected leaf while there is one, and the same until the next call", () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 150 }), fc.nat(), (steps, seed) => {
        const owner = new Owner(ORDERS[name]!, seed);
        const held: number[] = [];
        for (const one of steps) {
          run(owner, held, one);
          const leaves = owner.leaves();
          const victim = owner.order.victim();
          if (leaves.length === 0) expect(victim).toBe(NO_NODE);
          else expect(leaves).toContain(victim);
          expect(owner.order.victim()).toBe(victim);
        }
      }),
      { seed: SEED, numRuns: 150 },
    );
  });

  test("returns every block in the end, each before its parent", () => {
    const owner = new Owner(ORDERS[name]!, 7);
    const random = seededRandom(3);
    for (let i = 0; i < 3_000; i++) owner.request(1 + randomBelow(random, BLOCKS), 5, 60);
    while (owner.resident.size > 0) {
      expect(owner.leaves()).toContain(owner.order.victim());
      owner.remove(owner.order.victim());
    }
    expect(owner.order.victim()).toBe(NO_NODE);
  });

  test("is deterministic", () => {
    const victims = [1, 2].map(() => {
      const owner = new Owner(ORDERS[name]!, 11);
      const random = seededRandom(5);
      const found: number[] = [];
      for (let i = 0; i < 3_000; i++) {
        owner.request(1 + randomBelow(random, BLOCKS), 4, 40);
        found.push(owner.order.victim());
      }
      return found;
    });
    expect(victims[0]).toEqual(victims[1]!);
  });

  test("tracks mass removals in any order without a victim being requested", () => {
    const PATHS = 20_000;
    const LENGTH = 50;
    const parentOf = (id: number) => (id % LENGTH === 1 ? NO_NODE : id - 1) as NodeId;
    const order = ORDERS[name]!({ parentOf, fingerprintOf: (id) => id }, LENGTH * PATHS);
    const path = Array.from({ length: LENGTH }, (_, i) => (i + 1) as NodeId);
    for (let at = 0; at < PATHS; at++) order.stored(path.map((id) => (at * LENGTH + id) as NodeId));
    for (let id = LENGTH * PATHS; id > 1; id--) order.removed(id as NodeId);
    expect(order.victim()).toBe(1 as NodeId);
  });

  test("needs at most 24 bytes per block plus a megabyte", () => {
    const view = { parentOf: () => NO_NODE, fingerprintOf: () => 0 };
    for (const blocks of [1_000, 100_000, 2 ** 20, 2 ** 20 - 1, 3_000_000]) {
      const bytes = bytesCreated(() => ORDERS[name]!(view, blocks));
      expect(bytes).toBeLessThanOrEqual(24 * blocks + 2 ** 20);
      expect(bytes).toBeGreaterThan(8 * blocks);
    }
  });
});
