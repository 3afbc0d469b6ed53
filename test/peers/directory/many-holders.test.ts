import { expect, test } from "bun:test";
import fc from "fast-check";
import type { WorkerId } from "../../../src/core/index.ts";
import { KnownPeers, Summaries } from "../../../src/peers/directory/index.ts";
import type { PeerAnswer } from "../../../src/peers/index.ts";
import { KeyFilterBuilder } from "../../../src/peers/wire/index.ts";
import { ManualClock } from "../../support/index.ts";
import { announcementOf } from "./announcements.ts";

const NAMESPACE = new Uint8Array(32).fill(0xab);
const EVERY_MS = 1_000;

/** 32 bytes that look like a hash, from a block's number. */
function keyOf(block: number): Uint8Array {
  return new Uint8Array(new Bun.CryptoHasher("sha256").update(`block ${block}`).digest());
}

function summaryOf(blocks: Iterable<number>, version = 1n): PeerAnswer {
  const all = [...blocks];
  const builder = new KeyFilterBuilder(all.length);
  for (const block of all) builder.add(keyOf(block));
  return { op: "summary", version, filter: builder.done().bytes };
}

async function knowing(hosts: number, answer: (host: number, known: bigint) => PeerAnswer) {
  const clock = new ManualClock();
  const members = new KnownPeers({ self: "self" as WorkerId, clock });
  const [asked, lines]: [string[], string[]] = [[], []];
  const summaries = new Summaries({
    ...{ members, clock, everyMs: EVERY_MS, namespaces: () => [NAMESPACE] },
    log: (_, text) => void lines.push(text),
    mayAsk: () => true,
    call: async (worker, { known }) => {
      asked.push(`${worker} ${known}`);
      return answer(Number(worker.slice(1)), known);
    },
    bytesMax: 2 ** 30,
  });
  for (let host = 0; host < hosts; host++) {
    members.heard(announcementOf(`w${host}`, { namespaces: null, everyMs: 300_000 }));
  }
  for (let rounds = 0; rounds <= hosts / 64; rounds++) await clock.advanceAsync(EVERY_MS);
  const holders = (block: number) => summaries.holders(NAMESPACE, keyOf(block), 0);
  const end = () => summaries[Symbol.asyncDispose]();
  return { summaries, clock, members, holders, asked, lines, [Symbol.asyncDispose]: end };
}

const BLOCKS = 24;

test("every named peer has the block; none is named only if none has it", async () => {
  const world = fc.record({
    hosts: fc.integer({ min: 1, max: 90 }),
    held: fc.array(fc.array(fc.nat(89), { maxLength: 12 }), { minLength: 1, maxLength: BLOCKS }),
    asked: fc.array(fc.nat(BLOCKS - 1), { maxLength: 60 }),
  });
  const property = fc.asyncProperty(world, async ({ hosts, held, asked }) => {
    const blocksOf = (host: number) =>
      held.flatMap((who, block) => (who.some((one) => one % hosts === host) ? [block] : []));
    await using it = await knowing(hosts, (host) => summaryOf(blocksOf(host)));
    for (const block of asked) {
      const named = it.holders(block) as readonly string[];
      const has = new Set((held[block] ?? []).map((one) => `w${one % hosts}`));
      expect(new Set(named).size).toBe(named.length);
      expect(named.length).toBeLessThanOrEqual(8);
      // A filter may have false positives.
      if (has.size > 0) expect(named.length).toBeGreaterThan(0);
      if (named.length < 8 && hosts <= 32) for (const one of has) expect(named).toContain(one);
    }
  });
  await fc.assert(property, { numRuns: 40 });
});

test("the only holder of a block is found among many peers", async () => {
  await using it = await knowing(300, (host) => summaryOf([host]));
  for (const block of [299, 0, 150, 299, 7]) {
    expect(it.holders(block) as readonly string[]).toContain(`w${block}`);
  }
});

test("a second holder of a run of blocks is found at any position", async () => {
  const blocks = Array.from({ length: 64 }, (_, i) => i);
  const has = (host: number) => host === 3 || host === 250;
  await using it = await knowing(300, (host) => summaryOf(has(host) ? blocks : []));
  const named = new Set(blocks.flatMap((block) => it.holders(block)));
  expect([...named].sort() as string[]).toEqual(["w250", "w3"]);
  expect(it.holders(0)).toHaveLength(2);
});

test("a discarded summary is not fetched again until it changes", async () => {
  let version = 1n;
  await using it = await knowing(1, (_, known) =>
    known === version
      ? { op: "summary", version, filter: null }
      : { op: "summary", version, filter: new Uint8Array(3) },
  );
  await it.clock.advanceAsync(2 * EVERY_MS);
  expect(it.lines).toHaveLength(1);
  expect(it.asked.slice(0, 2)).toEqual(["w0 0", "w0 1"]);
  version = 2n;
  await it.clock.advanceAsync(2 * EVERY_MS);
  expect(it.lines).toHaveLength(2);
});

test("new peers are asked first, and a bounded number per interval", async () => {
  await using it = await knowing(0, () => summaryOf([1]));
  const come = (from: number, count: number) => {
    for (let host = from; host < from + count; host++) {
      it.members.heard(announcementOf(`w${host}`, { namespaces: null, everyMs: 300_000 }));
    }
  };
  await it.clock.advanceAsync(EVERY_MS);
  come(0, 500);
  await it.clock.advanceAsync(EVERY_MS / 2);
  expect(it.asked).toHaveLength(128);
  for (let rounds = 0; rounds < 4; rounds++) await it.clock.advanceAsync(EVERY_MS);
  expect(it.summaries.stats().summaries).toBe(500);
  await it.clock.advanceAsync(EVERY_MS);
  const before = it.asked.length;
  await it.clock.advanceAsync(EVERY_MS);
  expect(it.asked.length - before).toBe(32);
  come(500, 1);
  await it.clock.advanceAsync(1);
  expect(it.asked.slice(before + 32)).toEqual(["w500 0"]);
});
