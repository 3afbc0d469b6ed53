import { afterAll, afterEach, expect, test } from "bun:test";
import {
  NO_NODE,
  type NodeId,
  type Random,
  randomBelow,
  seededRandom,
} from "../../../src/core/index.ts";
import { setFaults } from "../../../src/native/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { describeNative, withTempDir } from "../../support/index.ts";
import { type BlockName, chain } from "../names.ts";
import { verifyStore } from "../verify-store.ts";
import { FILE_BYTES, SsdHost } from "./ssd-kit.ts";
import { pick, Traffic } from "./traffic.ts";

const STEPS = 200;
const PINS_MAX = 2;
const WRITE_POLICIES = ["write_through", "write_through_selective", "write_back"] as const;
const NAMES = [..."abcdefgh"].flatMap((root) => chain(`${root}/1/2`));

/** Faults of writes. Reads work, since a pin cannot help otherwise. */
const PLANS = [
  "store.write:3+:ENOSPC",
  "store.open:2+:EROFS",
  "store.link:2+:EIO",
  "store.write:2:short;store.write:5:EIO",
  "remove.unlink:1+:EIO",
  "rename.*:1+:EIO",
  "store.write:1+:delay=5",
  "sync.sync:1+:EIO",
];

interface Pin {
  readonly node: NodeId;
  /** Known blocks of the path that were present when the pin began. */
  readonly there: readonly { readonly name: BlockName; readonly node: NodeId }[];
}

/** Pins that begin and end at random, with checks that the pinned blocks are present. */
class Pins {
  readonly #traffic: Traffic;
  readonly #random: Random;
  readonly #pins: Pin[] = [];
  begun = 0;

  constructor(traffic: Traffic, random: Random) {
    this.#traffic = traffic;
    this.#random = random;
  }

  #tiersOf(node: NodeId): number {
    const { table } = this.#traffic.kit.store;
    return node === NO_NODE ? 0 : table.residencyOf(node) & (Tier.ram | Tier.ssd);
  }

  step(): void {
    const dice = randomBelow(this.#random, 8);
    if (dice === 0) this.endOne();
    if (dice > 2 || this.#pins.length >= PINS_MAX) return;
    const { kit } = this.#traffic;
    const name = pick(this.#random, NAMES);
    const node = kit.nodeOf(name);
    if (this.#tiersOf(node) === 0) return;
    const { table } = kit.store;
    const path = chain(name).map((step) => ({ name: step, node: kit.nodeOf(step) }));
    const known = new Set<NodeId>();
    for (let step = node; step !== NO_NODE; step = table.parentOf(step)) known.add(step);
    const there = path.filter((step) => known.has(step.node) && this.#tiersOf(step.node) !== 0);
    expect(table.pin(node)).toBe(true);
    this.#pins.push({ node, there });
    this.begun++;
  }

  /** Checks that all pinned blocks are on this host under the same node id. */
  expectThere(): void {
    for (const { there } of this.#pins) {
      for (const { name, node } of there) {
        expect(this.#traffic.kit.nodeOf(name)).toBe(node);
        if (this.#tiersOf(node) === 0) throw new Error(`${name} is gone although it is pinned`);
      }
    }
  }

  /** Checks that on a working disk all pinned blocks become readable on SSD. */
  async expectOnSsd(): Promise<void> {
    const { kit } = this.#traffic;
    while (this.#pins.length === 0) {
      await this.#traffic.step(false);
      this.step();
    }
    await kit.until(() => kit.store.table.keptInRamAloneBytes === 0, "copies of pinned blocks");
    await this.#traffic.settle();
    this.#traffic.releaseAll();
    // During the wait so much time has passed that the disk may count as hung.
    await kit.pass(250);
    kit.leaveRam();
    const engine = kit.engine();
    for (const { name, node } of this.#pins.flatMap(({ there }) => there)) {
      expect(this.#tiersOf(node)).toBe(Tier.ssd);
      expect(await engine.load(name)).toEqual(["ok"]);
      kit.leaveRam();
    }
  }

  endOne(): void {
    const ended = this.#pins.shift();
    if (ended !== undefined) this.#traffic.kit.store.table.unpin(ended.node);
  }

  end(): void {
    while (this.#pins.length > 0) this.endOne();
  }
}

describeNative("SSD tier: random traffic with pinned blocks", () => {
  const host = new SsdHost();
  afterEach(() => setFaults(host.native, ""));
  afterAll(() => host[Symbol.asyncDispose]());

  for (const seed of [21, 22, 23, 24, 25, 26]) {
    test(
      `a pinned block never leaves the host (${seed})`,
      () =>
        withTempDir(async (dir) => {
          const random = seededRandom(seed);
          const writePolicy = WRITE_POLICIES[seed % 3]!;
          const capacityBytes = (8 + randomBelow(random, 8)) * FILE_BYTES;
          const policy = seed % 2 === 0 ? "lru" : "hearth";
          const options = { dir, slots: 8, depth: 4, writePolicy, capacityBytes, policy } as const;
          const traffic = new Traffic(host, { ...options, ttlMs: 20_000 }, random);
          await traffic.open();
          const pins = new Pins(traffic, random);
          for (let i = 0; i < STEPS; i++) {
            if (i % 40 === 20) setFaults(host.native, pick(random, PLANS));
            if (i % 40 === 0) setFaults(host.native, "");
            pins.step();
            await traffic.step(false);
            pins.expectThere();
            verifyStore(traffic.kit.store);
          }
          setFaults(host.native, "");
          await traffic.settle();
          pins.expectThere();
          await pins.expectOnSsd();
          pins.end();
          expect(pins.begun).toBeGreaterThan(3);
          await traffic.end();
        }),
      30_000,
    );
  }
});
