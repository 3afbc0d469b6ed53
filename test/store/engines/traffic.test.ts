import { expect } from "bun:test";
import { type Random, randomBelow, seededRandom } from "../../../src/core/index.ts";
import type { Lookup } from "../../../src/store/index.ts";
import { type BlockName, chain } from "../names.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { describeSsd } from "../ssd/use-kit.ts";
import type { StoreEngine } from "../store-engine.ts";
import { verifyStore } from "../verify-store.ts";
import { lookUp, rankOf } from "./lookup-kit.ts";

const ENGINES = 3;
const STEPS = 400;
const SLOT_BYTES = 8192;
const PROMPTS: readonly BlockName[][] = ["a/b/c/d/e", "a/b/x/y", "p/q/r/s/t/u", "m/n"].map(chain);

/** Connections of three engines that look up, acquire, write, announce and disconnect at random. */
class Traffic {
  readonly #kit: SsdKit;
  readonly #random: Random;
  readonly #members: { engine: StoreEngine; lookups: Lookup[] }[] = [];
  readonly #all: Lookup[] = [];

  constructor(kit: SsdKit, seed: number) {
    this.#kit = kit;
    this.#random = seededRandom(seed);
  }

  #below(count: number): number {
    return randomBelow(this.#random, count);
  }

  #join() {
    const engine = this.#kit.engine();
    engine.holder.engine.join(`${this.#below(ENGINES)}`.repeat(32), 0);
    const member = { engine, lookups: [] };
    this.#members.push(member);
    return member;
  }

  #prompt(): BlockName[] {
    const prompt = PROMPTS[this.#below(PROMPTS.length)]!;
    return prompt.slice(0, 1 + this.#below(prompt.length));
  }

  async step(): Promise<void> {
    const { store, clock } = this.#kit;
    if (this.#members.length < 4) this.#join();
    const at = this.#below(this.#members.length);
    const { engine, lookups } = this.#members[at]!;
    const group = engine.holder.engine.group!;
    switch (this.#below(9)) {
      case 0:
      case 1:
        await engine.put(...this.#prompt());
        break;
      case 2:
      case 3:
      case 4: {
        const has = () => this.#below(2) === 0;
        const wish = { hold: has(), fetch: has(), wait: has(), readers: 1 + this.#below(2) };
        const times = { deadlineMs: 1 + this.#below(400), holdMs: 1 + this.#below(400) };
        const { lookup } = lookUp(store, engine.holder, this.#prompt(), { ...wish, ...times });
        lookups.push(lookup);
        this.#all.push(lookup);
        break;
      }
      case 5: {
        const handles = await engine.fetch(this.#prompt(), { deadlineMs: 60_000 });
        engine.release(handles.filter(({ outcome }) => outcome === "ok"));
        break;
      }
      case 6: {
        const { keys } = rankOf(store, this.#prompt());
        if (this.#below(3) === 0) group.announced.withdraw(keys, 0);
        else group.announced.add(keys, 0, 1 + this.#below(300));
        const lookup = lookups.pop();
        if (lookup !== undefined) group.claims.endById(lookup.state.hold);
        break;
      }
      case 7:
        clock.advance(1 + this.#below(100));
        break;
      default:
        if (this.#below(4) !== 0) break;
        engine.die();
        this.#members.splice(at, 1);
    }
    this.#check();
  }

  #check(): void {
    const { store } = this.#kit;
    const { bytes } = store.engines.book.stats;
    expect(bytes % SLOT_BYTES).toBe(0);
    expect(bytes).toBeLessThanOrEqual(store.engines.book.limits.bytesMaxAll);
    for (const { ready, leading } of this.#all.map(({ state }) => state)) {
      expect(ready).toBeLessThanOrEqual(leading);
    }
    verifyStore(store);
  }

  async end(): Promise<void> {
    const { store, clock } = this.#kit;
    for (const { engine } of this.#members) engine.die();
    await Promise.all(this.#all.map(({ done, isOver }) => (isOver ? null : done)));
    clock.advance(1_000);
    await this.#kit.settled();
    expect(store.engines.book.stats.bytes).toBe(0);
    const { lookups, announcements, size } = store.engines;
    expect([lookups.size, announcements.size, size]).toEqual([0, 0, 0]);
  }
}

describeSsd("random lookups", (it) => {
  for (const seed of [1, 2, 3]) {
    it(`leave no locks and stay within their limits, seed ${seed}`, { slots: 16 }, async ({
      kit,
    }) => {
      const traffic = new Traffic(kit, seed);
      for (let step = 0; step < STEPS; step++) await traffic.step();
      await traffic.end();
      const { claimedBlocks, takenBlocks, unusedBlocks } = kit.store.engines.book.stats;
      expect(claimedBlocks).toBe(takenBlocks + unusedBlocks);
      expect(takenBlocks).toBeGreaterThan(10);
    });
  }
});
