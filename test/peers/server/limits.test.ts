import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { Served } from "../../../src/peers/index.ts";
import { SERVE_LIMITS } from "../../../src/peers/server/index.ts";
import { waitFor } from "../../support/index.ts";
import { drain, itemOf, MIB, pulling, startServer } from "./shelf.ts";

type Pull = ReturnType<typeof pulling>;

async function taken(pull: Pull) {
  const served = await pull.next();
  if (served?.kind !== "block") throw new Error(`no block but ${served?.kind}`);
  return served;
}

/** Whether the promise has settled once everything that is ready has run. */
async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  let settled = false;
  void promise.then(() => {
    settled = true;
  });
  await new Promise((resolve) => setImmediate(resolve));
  return settled;
}

describe("bytes of slot references", () => {
  test("are bounded for a peer: its pull waits for its own blocks to come back", async () => {
    const { shelf, server } = startServer({ peerBytesMax: 2 * MIB });
    const pull = pulling(
      server,
      [1, 2, 3].map((i) => itemOf(shelf.put(i))),
    );
    const [first, second] = [await taken(pull), await taken(pull)];
    const third = pull.next();
    expect(await isSettled(third)).toBe(false);
    expect([shelf.lent, server.stats.lentBytes]).toEqual([2, 2 * MIB]);
    second.release();
    const served = await third;
    expect(served?.kind).toBe("block");
    first.release();
    if (served?.kind === "block") served.release();
    expect(await pull.next()).toBeNull();
  });

  test("are bounded in all: a pull without any in progress gets busy", async () => {
    const { shelf, server } = startServer({ bytesMax: 2 * MIB, peerBytesMax: 2 * MIB });
    const items = [1, 2, 3].map((i) => itemOf(shelf.put(i)));
    const greedy = pulling(server, items);
    const [first, second] = [await taken(greedy), await taken(greedy)];
    const other = pulling(server, [items[0]!], { worker: "other" });
    expect(await other.next()).toMatchObject({ index: 0, kind: "busy" });
    expect(await other.next()).toBeNull();
    first.release();
    expect(await drain(pulling(server, [items[0]!], { worker: "other" }))).toEqual(["0 block"]);
    second.release();
    expect(await drain(greedy)).toEqual(["2 block"]);
  });

  test("of one peer leave room for another", async () => {
    const { shelf, server } = startServer({ bytesMax: 8 * MIB, peerBytesMax: MIB });
    const block = itemOf(shelf.put(1));
    const greedy = pulling(server, [block]);
    const lent = await taken(greedy);
    expect(await drain(pulling(server, [block]))).toEqual(["0 busy"]);
    expect(await drain(pulling(server, [block], { worker: "other" }))).toEqual(["0 block"]);
    lent.release();
    expect(await drain(pulling(server, [block]))).toEqual(["0 block"]);
    await greedy.iterator.return!();
  });

  test("may be exceeded by a single block", async () => {
    const { shelf, server } = startServer({ bytesMax: MIB, peerBytesMax: MIB });
    const items = [1, 2].map((i) => itemOf(shelf.put(i, { bytes: 3 * MIB })));
    expect(await drain(pulling(server, items))).toEqual(["0 block", "1 block"]);
  });

  test("include blocks that are being read from SSD", async () => {
    const { shelf, server } = startServer({ peerBytesMax: 2 * MIB });
    const items = [1, 2, 3].map((i) => itemOf(shelf.put(i, { tier: "ssd" })));
    const seen = drain(pulling(server, items));
    await waitFor(() => shelf.reads.length === 2);
    expect(server.stats).toMatchObject({ lentBytes: 2 * MIB, lentBlocks: 2, reads: 2 });
    shelf.reads[0]!.finish();
    await waitFor(() => shelf.reads.length === 3);
    shelf.reads[1]!.finish("absent");
    shelf.reads[2]!.finish();
    expect((await seen).sort()).toEqual(["0 block", "1 absent", "2 block"]);
    expect(server.stats.lentBytes).toBe(0);
  });

  test("follow changed limits", async () => {
    const { shelf, server } = startServer({ peerBytesMax: MIB });
    const pull = pulling(
      server,
      [1, 2].map((i) => itemOf(shelf.put(i))),
    );
    const first = await taken(pull);
    server.configure({ ...SERVE_LIMITS, peerBytesMax: 2 * MIB });
    const second = await taken(pull);
    first.release();
    second.release();
    expect(await pull.next()).toBeNull();
  });
});

describe("the retry time", () => {
  test("is the time that the current bytes take to be sent", async () => {
    const { shelf, server, clock } = startServer({
      bytesMax: 1_000 * MIB,
      peerBytesMax: 1_000 * MIB,
    });
    const items = [1, 2, 3, 4].map((i) =>
      itemOf(shelf.put(i, { bytes: 250 * MIB }), { bytesMax: 2 ** 31 }),
    );
    const pull = pulling(server, items, { deadlineMs: 60_000 });
    const loans = [await taken(pull), await taken(pull), await taken(pull), await taken(pull)];
    const retryAfter = async () => {
      const served = await pulling(server, [items[0]!], { worker: "other" }).next();
      return served?.kind === "busy" ? served.retryAfterMs : null;
    };
    // Nothing was sent yet: the maximum.
    expect(await retryAfter()).toBe(2_000);
    clock.advance(1_100);
    loans[0]!.release();
    loans[1]!.release();
    // 500 MiB in the last second, and 750 MiB are referenced again.
    const more = pulling(server, [items[0]!], { worker: "third" });
    const third = await taken(more);
    server.configure({ ...SERVE_LIMITS, bytesMax: MIB });
    expect(await retryAfter()).toBe(1_500);
    clock.advance(1_000);
    expect(await retryAfter()).toBe(1_500);
    // Nothing was sent in the two seconds before.
    clock.advance(1_000);
    expect(await retryAfter()).toBe(2_000);
    for (const served of [loans[2]!, loans[3]!, third]) served.release();
    await pull.iterator.return!();
    await more.iterator.return!();
    expect(server.stats.lentBytes).toBe(0);
  });
});

describe("running requests", () => {
  test("of one peer are bounded, and every block of a further one gets busy", async () => {
    const { shelf, server } = startServer({ peerRequestsMax: 2 });
    const items = [1, 2].map((i) => itemOf(shelf.put(i, { tier: "ssd" })));
    const pulls = [pulling(server, items), pulling(server, items)];
    const first = pulls.map((pull) => pull.next());
    await waitFor(() => shelf.reads.length === 4);
    expect(await drain(pulling(server, items))).toHaveLength(2);
    const other = drain(pulling(server, items, { worker: "other" }));
    await waitFor(() => shelf.reads.length === 6);
    for (const read of shelf.reads) read.finish();
    expect(await other).toHaveLength(2);
    for (const served of await Promise.all(first)) {
      if (served?.kind === "block") served.release();
    }
    for (const pull of pulls) expect(await drain(pull)).toHaveLength(1);
    expect(await drain(pulling(server, []))).toEqual([]);
    expect(server.stats.openPulls).toBe(0);
  });

  test("that read from SSD are bounded in all", async () => {
    const { shelf, server } = startServer({ readsMax: 2 });
    const items = [1, 2, 3].map((i) => itemOf(shelf.put(i, { tier: "ssd" })));
    const seen = drain(pulling(server, items));
    await waitFor(() => shelf.reads.length === 2);
    expect(await drain(pulling(server, [items[0]!], { worker: "other" }))).toEqual(["0 busy"]);
    shelf.reads[0]!.finish();
    await waitFor(() => shelf.reads.length === 3);
    shelf.reads[1]!.finish();
    shelf.reads[2]!.finish();
    expect(await seen).toHaveLength(3);
  });
});

describe("with any sequence of events", () => {
  const step = fc.oneof(
    fc.record({
      kind: fc.constant("pull" as const),
      worker: fc.constantFrom("a", "b"),
      blocks: fc.array(fc.nat(11), { maxLength: 6 }),
    }),
    fc.record({ kind: fc.constant("next" as const), at: fc.nat() }),
    fc.record({ kind: fc.constantFrom("release", "return", "abort"), at: fc.nat() }),
    fc.record({
      kind: fc.constant("read" as const),
      at: fc.nat(),
      how: fc.constantFrom("ok", "busy", "absent", "throw"),
    }),
    fc.record({ kind: fc.constant("time" as const), ms: fc.nat(400) }),
  );

  test("every item is answered once, and every slot reference is released", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const limits = { bytesMax: 5 * MIB, peerBytesMax: 3 * MIB, peerRequestsMax: 3 };
        const { shelf, server, clock } = startServer({ ...limits, readsMax: 3, pullReadsMax: 2 });
        const blocks = Array.from({ length: 10 }, (_, i) =>
          shelf.put(i, { tier: i % 2 === 0 ? "ram" : "ssd", bytes: MIB * (1 + (i % 3)) }),
        );
        const missing = { digest: new Uint8Array(32), layer: 9 };
        const pulls: { pull: Pull; seen: Set<number>; count: number; ended: boolean }[] = [];
        const out: Extract<Served, { kind: "block" }>[] = [];
        const waiting: Promise<void>[] = [];
        const pick = <T>(list: readonly T[], at: number) => list[at % Math.max(1, list.length)];

        const next = (one: (typeof pulls)[number]) =>
          one.pull.next().then((served) => {
            if (served === null) {
              if (!one.ended) expect(one.seen.size).toBe(one.count);
              return;
            }
            expect(one.seen.has(served.index)).toBe(false);
            one.seen.add(served.index);
            if (served.kind === "block") out.push(served);
          });
        for (const one of steps) {
          if (one.kind === "pull") {
            const items = one.blocks.map((i) => itemOf(blocks[i] ?? missing));
            const pull = pulling(server, items, { worker: one.worker, deadlineMs: 500 });
            pulls.push({ pull, seen: new Set(), count: items.length, ended: false });
          } else if (one.kind === "time") clock.advance(one.ms);
          else if (one.kind === "read") {
            const [read] = shelf.reads.splice(one.at % Math.max(1, shelf.reads.length), 1);
            if (one.how === "throw") read?.fail(new Error("broken"));
            else read?.finish(one.how === "ok" ? undefined : (one.how as "busy"));
          } else if (one.kind === "release") {
            out.splice(one.at % Math.max(1, out.length), 1)[0]?.release();
          } else {
            const chosen = pick(pulls, one.at);
            if (chosen !== undefined && one.kind === "next") waiting.push(next(chosen));
            else if (chosen !== undefined) {
              chosen.ended = true;
              if (one.kind === "abort") chosen.pull.abort();
              else await chosen.pull.iterator.return!();
            }
          }
          await Promise.resolve();
          const { lentBytes } = server.stats;
          expect(lentBytes).toBeLessThanOrEqual(5 * MIB);
          expect(shelf.lent).toBeLessThanOrEqual(server.stats.lentBlocks);
        }
        // All requests continue to the end.
        clock.advance(1_000);
        for (const served of out.splice(0)) served.release();
        await Promise.all(waiting);
        for (const one of pulls) {
          while (!one.ended && one.seen.size < one.count) await next(one);
          await one.pull.next();
        }
        for (const served of out.splice(0)) served.release();
        for (const read of shelf.reads.splice(0)) read.finish();
        await waitFor(() => server.stats.reads === 0);
        const { openPulls, lentBlocks, lentBytes } = server.stats;
        expect([openPulls, lentBlocks, lentBytes, shelf.lent]).toEqual([0, 0, 0, 0]);
        expect(clock.pending).toBe(0);
      }),
      { numRuns: 300, seed: 12 },
    );
  });
});
