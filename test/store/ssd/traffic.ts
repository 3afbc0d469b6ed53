import { LAYER_ALL, type Random, randomBelow } from "../../../src/core/index.ts";
import { purgeBlocks } from "../../../src/store/index.ts";
import { IndexBox } from "../../faults/memory-index.ts";
import { waitFor } from "../../support/index.ts";
import { type BlockName, chain, digestOf } from "../names.ts";
import type { Handle, StoreEngine } from "../store-engine.ts";
import { type SsdHost, SsdKit, type SsdKitOptions } from "./ssd-kit.ts";

const NAMES: readonly BlockName[] = [
  ...new Set([..."abcdefgh"].flatMap((root) => chain(`${root}/1/2`))),
  ...Array.from({ length: 16 }, (_, i) => `x${i}`),
];
const HELD_MAX = 3;

export function pick<T>(random: Random, list: readonly T[]): T {
  return list[randomBelow(random, list.length)]!;
}

/** A model of the allowed answers: the weakest contract of a cache. */
class Model {
  /** Committed and not purged since. */
  readonly there = new Set<BlockName>();

  judge(name: BlockName, outcome: string): void {
    if (outcome === "ok" && !this.there.has(name)) throw new Error(`${name} was never there`);
  }
}

/**
 * Engines that write, read, lock, purge and disconnect at random, while the store is stopped and
 * killed at random. Every answer is checked against the model and the bytes.
 */
export class Traffic {
  readonly #host: SsdHost;
  readonly #options: SsdKitOptions;
  readonly #random: Random;
  readonly #model = new Model();
  readonly #box = new IndexBox();
  readonly #held: { engine: StoreEngine; handles: Handle[] }[] = [];
  readonly seen = new Map<string, number>();
  #kit!: SsdKit;
  #engines: StoreEngine[] = [];

  constructor(host: SsdHost, options: SsdKitOptions, random: Random) {
    this.#host = host;
    this.#options = options;
    this.#random = random;
  }

  get kit(): SsdKit {
    return this.#kit;
  }

  async open(): Promise<void> {
    this.#kit = await SsdKit.open(this.#host, {
      ...this.#options,
      openIndex: async (_, run) => this.#box.open(run),
    });
    this.#engines = [this.#kit.engine(), this.#kit.engine()];
  }

  #names(most: number): BlockName[] {
    const count = 1 + randomBelow(this.#random, most);
    const first = pick(this.#random, NAMES);
    return first.includes("/")
      ? chain(first)
      : Array.from({ length: count }, () => pick(this.#random, NAMES));
  }

  #note(what: string, outcome: string): void {
    const key = `${what} ${outcome}`;
    this.seen.set(key, (this.seen.get(key) ?? 0) + 1);
  }

  /** One step of the traffic. `mayRestart`: the store may be stopped or killed, too. */
  async step(mayRestart: boolean): Promise<void> {
    const dice = randomBelow(this.#random, 100);
    if (dice < 30) await this.#put();
    else if (dice < 70) await this.#load();
    else if (dice < 78) await this.#hold();
    else if (dice < 84) this.#release();
    else if (dice < 88) await this.#purge();
    else if (dice < 92) this.#kit.leaveRam();
    else if (dice < 95) await this.#kit.clock.advanceAsync(500, 250);
    else if (dice < 97) await this.settle();
    else if (dice < 98) this.#die();
    else if (mayRestart) await this.restart(dice === 98);
  }

  async #put(): Promise<void> {
    const names = this.#names(3);
    const outcomes = await pick(this.#random, this.#engines).put(...names);
    outcomes.forEach((outcome, i) => {
      this.#note("put", outcome);
      if (outcome === "ok") this.#model.there.add(names[i]!);
      if (outcome === "present") this.#model.judge(names[i]!, "ok");
    });
  }

  async #load(): Promise<void> {
    const names = this.#names(4);
    const read = await pick(this.#random, this.#engines).load(...names);
    read.forEach((outcome, i) => {
      this.#note("load", outcome);
      if (outcome === "wrong bytes") throw new Error(`wrong bytes of ${names[i]}`);
      this.#model.judge(names[i]!, outcome);
    });
  }

  async #hold(): Promise<void> {
    if (this.#held.length >= HELD_MAX) return;
    const engine = pick(this.#random, this.#engines);
    const stopAtMiss = randomBelow(this.#random, 2) === 0;
    const asked = await engine.fetch(this.#names(3), { stopAtMiss });
    for (const { name, outcome } of asked) this.#model.judge(name, outcome);
    this.#held.push({ engine, handles: asked.filter(({ outcome }) => outcome === "ok") });
  }

  /** Checks that acquired blocks have not changed, then releases them. */
  #release(): void {
    const held = this.#held.shift();
    if (held === undefined) return;
    for (const handle of held.handles) {
      if (!held.engine.proves(handle)) throw new Error(`${handle.name} changed while it was held`);
    }
    held.engine.release(held.handles);
  }

  async #purge(): Promise<void> {
    const names = [pick(this.#random, NAMES)];
    const addresses = names.map((name) => ({ digest: digestOf(name), layer: LAYER_ALL }));
    const outcomes = await purgeBlocks(this.#kit.store, addresses);
    outcomes.forEach((outcome, i) => {
      this.#note("purge", outcome);
      if (outcome === "done") this.#model.there.delete(names[i]!);
    });
  }

  /** Releases all blocks. */
  releaseAll(): void {
    while (this.#held.length > 0) this.#release();
  }

  #die(): void {
    this.releaseAll();
    this.#engines.pop()!.die();
    this.#engines.push(this.#kit.engine());
  }

  /** Waits until no operation is under way, and checks the capacity. */
  async settle(): Promise<void> {
    let isOver = false;
    const over = this.#kit.settled().then(() => {
      isOver = true;
    });
    await waitFor(
      async () => {
        await this.#kit.clock.advanceAsync(isOver ? 0 : 250);
        return isOver;
      },
      10_000,
      "everything settled",
    );
    await over;
    this.expectCapKept();
  }

  expectCapKept(): void {
    const bytes = this.#kit.allocatedBytes();
    const { capacityBytes, usedBytes } = this.#kit.ssd.room;
    if (bytes > capacityBytes) throw new Error(`${bytes} on disk above ${capacityBytes}`);
    if (bytes > usedBytes) throw new Error(`${bytes} on disk, ${usedBytes} counted`);
  }

  async restart(kill: boolean): Promise<void> {
    this.releaseAll();
    if (kill) this.#box.crash();
    await this.settle();
    for (const engine of this.#engines) engine.die();
    await this.#kit.close();
    await this.open();
    this.#note("restart", kill ? "kill" : "stop");
  }

  /** Checks that all blocks are present; for runs without faults and with enough space on SSD. */
  async expectAllThere(): Promise<void> {
    await this.settle();
    for (const name of NAMES) {
      const [read] = await this.#engines[0]!.load(name);
      const wanted = this.#model.there.has(name) ? "ok" : "miss";
      if (read !== wanted) throw new Error(`${name} is ${read}, not ${wanted}`);
    }
  }

  async end(): Promise<void> {
    this.releaseAll();
    for (const engine of this.#engines) engine.die();
    await this.settle();
    await this.#kit.expectNothingLeft();
    await this.#kit.close();
  }
}
