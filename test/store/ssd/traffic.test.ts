import { afterAll, afterEach, expect, test } from "bun:test";
import { randomBelow, seededRandom } from "../../../src/core/index.ts";
import { setFaults } from "../../../src/native/index.ts";
import { ringRefusal } from "../../faults/methods.ts";
import { describeNative, withTempDir } from "../../support/index.ts";
import { FILE_BYTES, SsdHost } from "./ssd-kit.ts";
import { pick, Traffic } from "./traffic.ts";

const STEPS = 150;
const WRITE_POLICIES = ["write_through", "write_through_selective", "write_back"] as const;

/** Temporary faults; an empty plan ends them. */
const PLANS = [
  "load.read:2+:EIO",
  "load.read:1:flip;load.read:4:flip",
  "load.read:1+:flip",
  "load.read:3+:short",
  "load.open:1+:EMFILE",
  "store.write:3+:ENOSPC",
  "store.open:2+:EROFS",
  "store.link:2+:EIO",
  "store.write:2:short;store.write:5:EIO",
  "remove.unlink:1+:EIO",
  "rename.*:1+:EIO",
  "*:3+:EIO",
  "load.read:1+:delay=5;store.write:1+:delay=5",
  "sync.sync:1+:EIO",
];

describeNative("SSD tier: random traffic", () => {
  const host = new SsdHost();
  afterEach(() => setFaults(host.native, ""));
  afterAll(() => host[Symbol.asyncDispose]());

  for (const seed of [1, 2, 3]) {
    test(
      `no block is lost without faults (${seed})`,
      () =>
        withTempDir(async (dir) => {
          const random = seededRandom(seed);
          const traffic = new Traffic(host, { dir, slots: 6, depth: 8, policy: "hearth" }, random);
          await traffic.open();
          for (let i = 0; i < STEPS; i++) {
            await traffic.step(false);
            // A block is lost only if it is evicted before its write has finished: exclude that.
            await traffic.settle();
          }
          await traffic.restart(false);
          await traffic.expectAllThere();
          await traffic.restart(true);
          await traffic.expectAllThere();
          await traffic.end();
          expect(traffic.seen.get("load ok")).toBeGreaterThan(20);
          expect(traffic.seen.get("purge done")).toBeGreaterThan(0);
        }),
      30_000,
    );
  }

  for (const seed of [11, 12, 13, 14, 15, 16]) {
    test(
      `every answer is correct under any fault (${seed})`,
      () =>
        withTempDir(async (dir) => {
          const random = seededRandom(seed);
          const writePolicy = pick(random, WRITE_POLICIES);
          const capacityBytes = (4 + randomBelow(random, 20)) * FILE_BYTES;
          const ring = (await ringRefusal(host.native)) === null;
          const method = ring && seed % 2 === 0 ? "io_uring" : "threads";
          const options = { dir, slots: 6, depth: 4, method, writePolicy, capacityBytes } as const;
          const policy = seed % 3 === 0 ? "lru" : "hearth";
          const ageing = { ttlMs: 20_000, scrubBytesPerS: 20_000, policy } as const;
          const traffic = new Traffic(host, { ...options, ...ageing }, random);
          await traffic.open();
          for (let i = 0; i < STEPS; i++) {
            const isFailing = i % 30 >= 15;
            if (i % 30 === 15) setFaults(host.native, pick(random, PLANS));
            if (i % 30 === 0) setFaults(host.native, "");
            await traffic.step(!isFailing);
            traffic.expectCapKept();
          }
          setFaults(host.native, "");
          await traffic.restart(true);
          await traffic.end();
          expect(traffic.seen.get("load ok")).toBeGreaterThan(5);
        }),
      30_000,
    );
  }
});
