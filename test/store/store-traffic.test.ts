import { expect, test } from "bun:test";
import { type Random, randomBelow, seededRandom } from "../../src/core/index.ts";
import { describeNative } from "../support/index.ts";
import { type BlockName, chain } from "./names.ts";
import type { Handle, StoreEngine } from "./store-engine.ts";
import { openStoreKit, type StoreKit } from "./store-kit.ts";

const MIB = 2 ** 20;
/** Four extents, so that several block sizes coexist and exchange memory. */
const ARENA_BYTES = 256 * MIB;
const SIZES = [MIB, MIB, MIB, MIB, 3 * MIB, 3 * MIB, 9 * MIB, 33 * MIB];
const STEPS = 600;

interface Engine {
  real: StoreEngine;
  held: Handle[];
}

function pick<T>(random: Random, from: readonly T[]): T {
  return from[randomBelow(random, from.length)]!;
}

function prompt(random: Random): BlockName[] {
  const words = Array.from({ length: 1 + randomBelow(random, 3) }, () =>
    pick(random, [..."abcdefg"]),
  );
  return chain(words.join("/"));
}

/** All engine operations in random order, on a store with small limits. */
class Traffic {
  readonly seen = { proven: 0, stored: 0, refused: 0 };
  readonly #kit: StoreKit;
  readonly #random: Random;
  readonly #engines: Engine[];

  constructor(kit: StoreKit, seed: number) {
    this.#kit = kit;
    this.#random = seededRandom(seed);
    this.#engines = [1, 1, 2].map((namespace) => this.#open(namespace));
  }

  #open(namespace: number): Engine {
    return { real: this.#kit.engine(namespace, 12), held: [] };
  }

  async step(): Promise<void> {
    const random = this.#random;
    const at = randomBelow(random, this.#engines.length);
    const engine = this.#engines[at]!;
    const names = prompt(random);
    const dice = randomBelow(random, 20);
    if (dice < 8) await this.#write(engine, names, dice);
    else if (dice < 11) this.#read(engine, names);
    else if (dice < 15) this.#release(engine);
    else if (dice < 17) this.#mirror(engine.real, names);
    else if (dice < 19) this.#name(engine.real, names.at(-1)!);
    else {
      engine.real.die();
      this.#engines[at] = this.#open(at === 2 ? 2 : 1);
    }
    for (const { held } of this.#engines) this.#proveAll(engine.real, held);
  }

  async #write({ real }: Engine, names: BlockName[], dice: number): Promise<void> {
    const handles = real.reserve(
      ...names.map((name) => ({ name, bytes: pick(this.#random, SIZES), transient: dice === 1 })),
    );
    const granted = handles.filter(({ outcome }) => outcome === "ok");
    this.seen.refused += handles.length - granted.length;
    if (dice === 0) expect(real.abort(granted)).toEqual(granted.map(() => "ok"));
    else {
      real.write(granted);
      const outcomes = await real.commit(granted);
      expect(outcomes).toEqual(granted.map(() => "ok"));
      this.seen.stored += outcomes.length;
    }
  }

  #read(engine: Engine, names: BlockName[]): void {
    const handles = engine.real.acquire(names);
    engine.held.push(...handles.filter(({ outcome }) => outcome === "ok"));
  }

  #release(engine: Engine): void {
    const given = engine.held.splice(0, 1 + randomBelow(this.#random, 12));
    expect(engine.real.release(given)).toEqual(given.map(() => "ok"));
  }

  #mirror(real: StoreEngine, names: BlockName[]): void {
    if (randomBelow(this.#random, 2) === 0) real.gpuEvicted(...names);
    else
      real.gpuStored(...names.map((name) => ({ name, bytes: 1 + randomBelow(this.#random, MIB) })));
  }

  #name(real: StoreEngine, name: BlockName): void {
    const session = BigInt(1 + randomBelow(this.#random, 3));
    const dice = randomBelow(this.#random, 3);
    if (dice === 0) real.sessionCommit(session, name);
    else if (dice === 1) real.sessionRelease(session);
    else real.alias(name, BigInt(randomBelow(this.#random, 5)));
  }

  /** Checks that acquired blocks have not changed. */
  #proveAll(real: StoreEngine, held: readonly Handle[]): void {
    const some = held.length === 0 ? [] : [pick(this.#random, held)];
    for (const handle of some) {
      expect({ handle, proven: real.proves(handle) }).toEqual({ handle, proven: true });
      this.seen.proven++;
    }
  }
}

describeNative("random traffic of several sizes", () => {
  test.each([1, 2, 3])(
    "seed %i: acquired blocks stay correct, and no slot is lost",
    async (seed) => {
      // A table that is nearly always full, and a small GPU mirror.
      const small = { blocksMax: 64, gpuWindowBlocks: 24 };
      await using kit = openStoreKit({ arenaBytes: ARENA_BYTES, ...small });
      const traffic = new Traffic(kit, seed);
      for (let step = 0; step < STEPS; step++) await traffic.step();
      expect(traffic.seen.proven).toBeGreaterThan(100);
      expect(traffic.seen.stored).toBeGreaterThan(50);
      expect(traffic.seen.refused).toBeGreaterThan(20);
      const { stats, classes } = kit.snapshot();
      expect(stats.evictedBlocks).toBeGreaterThan(20);
      expect(classes.length).toBeGreaterThan(1);
      kit.expectNothingLeft();
    },
    30_000,
  );
});
