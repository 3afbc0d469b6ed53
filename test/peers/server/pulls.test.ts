import { afterEach, describe, expect, test } from "bun:test";
import type { Served } from "../../../src/peers/index.ts";
import type { ServeLimits } from "../../../src/peers/server/index.ts";
import { waitFor } from "../../support/index.ts";
import {
  digestOf,
  drain,
  itemOf,
  MIB,
  NAMESPACE,
  OTHER,
  peer,
  pulling,
  type Shelf,
  startServer,
} from "./shelf.ts";

let world: ReturnType<typeof startServer>;
function start(limits: Partial<ServeLimits> = {}): Shelf {
  world = startServer(limits);
  return world.shelf;
}

/** After every test: no slot reference, no running request, no timer. */
afterEach(() => {
  const { peers, openPulls, lentBlocks, lentBytes, reads } = world.server.stats;
  const left = { peers, openPulls, lentBlocks, lentBytes, reads, lent: world.shelf.lent };
  const nothing = { peers: 0, openPulls: 0, lentBlocks: 0, lentBytes: 0, reads: 0, lent: 0 };
  expect(left).toEqual(nothing);
  expect(world.clock.pending).toBe(0);
});

function blockOf(served: Served | null) {
  if (served?.kind !== "block") throw new Error(`no block but ${served?.kind}`);
  return served;
}

describe("a pull", () => {
  test("gets absent blocks first, then those in RAM, then those read from SSD", async () => {
    const shelf = start();
    const [a, b] = [shelf.put(1, { tier: "ssd" }), shelf.put(2)];
    const pull = pulling(world.server, [
      itemOf(a),
      itemOf(b),
      itemOf({ digest: digestOf(3), layer: 0 }),
    ]);
    expect(await pull.next()).toEqual({ index: 2, kind: "absent" });
    const first = blockOf(await pull.next());
    expect([first.index, shelf.lent]).toEqual([1, 1]);
    first.release();
    const last = pull.next();
    await waitFor(() => shelf.reads.length === 1);
    shelf.reads[0]!.finish();
    const block = blockOf(await last);
    expect(block.index).toBe(0);
    block.release();
    expect(await pull.next()).toBeNull();
    expect(world.server.stats).toMatchObject({ pulls: 1, blocks: 2, bytes: 2 * MIB, absent: 1 });
  });

  test("describes each block as its server has it", async () => {
    const shelf = start();
    const block = shelf.put(1, { layer: 7, generation: 9n });
    const served = blockOf(await pulling(world.server, [itemOf(block)]).next());
    expect(served).toMatchObject({
      index: 0,
      offset: 4096,
      header: {
        digest: block.digest,
        layer: 7,
        model: "llama",
        bytes: MIB,
        namespace: NAMESPACE,
        generation: 9n,
        checksum: 77n,
        parent: null,
        transient: false,
        aliases: [],
      },
    });
    served.release();
    expect(() => served.release()).toThrow("released once");
    world.server[Symbol.dispose]();
  });

  test("takes a slot reference in RAM only when the transport asks for it", async () => {
    const shelf = start();
    const items = Array.from({ length: 5 }, (_, i) => itemOf(shelf.put(i)));
    const pull = pulling(world.server, items);
    expect(shelf.lends).toBe(0);
    const first = blockOf(await pull.next());
    const second = blockOf(await pull.next());
    expect([shelf.lends, shelf.lent]).toEqual([2, 2]);
    first.release();
    second.release();
    await pull.iterator.return!();
    expect(shelf.lends).toBe(2);
  });

  test("returns blocks from SSD in order of arrival, a few at a time", async () => {
    const shelf = start({ pullReadsMax: 3 });
    const blocks = Array.from({ length: 5 }, (_, i) => shelf.put(i, { tier: "ssd" }));
    const pull = pulling(
      world.server,
      blocks.map((block) => itemOf(block)),
    );
    const rest = drain(pull);
    await waitFor(() => shelf.reads.length === 3);
    shelf.reads[2]!.finish();
    await waitFor(() => shelf.reads.length === 4);
    for (const at of [3, 0, 1]) shelf.reads[at]!.finish();
    await waitFor(() => shelf.reads.length === 5);
    shelf.reads[4]!.finish();
    expect(await rest).toEqual(["2 block", "3 block", "0 block", "1 block", "4 block"]);
  });

  test("reads only a few blocks ahead from SSD", async () => {
    const shelf = start({ pullReadsMax: 2 });
    const items = [1, 2, 3, 4].map((i) => itemOf(shelf.put(i, { tier: "ssd" })));
    const pull = pulling(world.server, items);
    const first = pull.next();
    await waitFor(() => shelf.reads.length === 2);
    for (const read of shelf.reads) read.finish();
    const served = blockOf(await first);
    await waitFor(() => world.server.stats.reads === 0);
    blockOf(await pull.next()).release();
    expect([shelf.reads.length, shelf.lent]).toEqual([3, 1]);
    served.release();
    shelf.reads[2]!.finish();
    await waitFor(() => world.server.stats.reads === 0);
    await pull.iterator.return!();
    expect(shelf.reads.length).toBe(3);
  });

  test("refuses a block that is longer than requested, or of another generation", async () => {
    const shelf = start();
    const [a, b] = [shelf.put(1), shelf.put(2)];
    const items = [itemOf(a, { bytesMax: MIB - 1 }), itemOf(b, { generation: 4n })];
    const pull = pulling(world.server, items);
    const answers = [await pull.next(), await pull.next()];
    expect(answers).toContainEqual({ index: 0, kind: "tooLong", bytes: MIB });
    expect(answers).toContainEqual({ index: 1, kind: "absent" });
    expect(await pull.next()).toBeNull();
    expect(shelf.lends).toBe(0);
  });

  test("does not get a block that changed while it was read", async () => {
    const shelf = start();
    const blocks = [1, 2, 3, 4].map((i) => shelf.put(i));
    shelf.surprises.push(shelf.loan({ ...blocks[0]!, bytes: 2 * MIB }));
    shelf.surprises.push(shelf.loan({ ...blocks[1]!, generation: 6n }));
    shelf.surprises.push("busy", Promise.resolve(shelf.loan(blocks[3]!)));
    const items = blocks.map((b) => itemOf(b, { bytesMax: MIB, generation: 5n }));
    const seen = await drain(pulling(world.server, items));
    expect(seen).toEqual(["0 tooLong", "1 absent", "2 busy", "3 block"]);
  });

  test("counts the actual bytes of a block that became shorter", async () => {
    const shelf = start();
    const block = shelf.put(1, { bytes: 3 * MIB });
    shelf.surprises.push(shelf.loan({ ...block, bytes: MIB }));
    const served = blockOf(await pulling(world.server, [itemOf(block)]).next());
    expect([world.server.stats.lentBytes, served.header.bytes]).toEqual([MIB, MIB]);
    served.release();
    world.server[Symbol.dispose]();
  });

  test("ignores its signal after its end", async () => {
    const shelf = start();
    const { signal } = new AbortController();
    const listeners = new Set<unknown>();
    signal.addEventListener = (_type: string, listener: unknown) => void listeners.add(listener);
    signal.removeEventListener = (_type: string, listener: unknown) => {
      listeners.delete(listener);
    };
    const items = [itemOf(shelf.put(1))];
    const request = { op: "pull" as const, namespace: NAMESPACE, items, deadlineMs: 100 };
    for await (const served of world.server.serve(peer("client"), request, signal)) {
      expect(listeners.size).toBe(1);
      if (served.kind === "block") served.release();
    }
    expect(listeners.size).toBe(0);
  });

  test("finds no block of a namespace that is unknown or not served", async () => {
    const shelf = start({ namespaces: new Set([NAMESPACE.toHex()]) });
    const block = shelf.put(1, { namespace: OTHER });
    for (const namespace of [OTHER, new Uint8Array(32).fill(9), NAMESPACE]) {
      expect(await drain(pulling(world.server, [itemOf(block)], { namespace }))).toEqual([
        "0 absent",
      ]);
    }
    expect([shelf.lends, world.server.stats.foreign]).toEqual([0, 2]);
    expect(await drain(pulling(world.server, [itemOf(shelf.put(1))]))).toEqual(["0 block"]);
  });

  test("without items ends at once", async () => {
    start();
    expect(await drain(pulling(world.server, []))).toEqual([]);
  });
});

describe("a block that cannot be read", () => {
  test("is refused, and the others are sent", async () => {
    const shelf = start();
    const [a, b] = [shelf.put(1, { tier: "ssd" }), shelf.put(2, { tier: "ssd" })];
    const seen = drain(pulling(world.server, [itemOf(a), itemOf(b)]));
    await waitFor(() => shelf.reads.length === 2);
    shelf.reads[0]!.fail(new Error("the disk is gone"));
    shelf.reads[1]!.finish();
    expect((await seen).sort()).toEqual(["0 refused", "1 block"]);
    expect(world.lines).toEqual(["error taking a slot reference failed: the disk is gone"]);
  });

  test("is refused also if the store throws synchronously", async () => {
    const shelf = start();
    shelf.throwOnLend = new Error("a bug");
    const items = [itemOf(shelf.put(1)), itemOf(shelf.put(2, { tier: "ssd" }))];
    expect((await drain(pulling(world.server, items))).sort()).toEqual(["0 refused", "1 refused"]);
  });
});

describe("a pull that ends early", () => {
  test("by a bug leaves nothing behind", async () => {
    const shelf = start();
    shelf.throwOnHas = new Error("a bug");
    const pull = pulling(world.server, [itemOf(shelf.put(1))]);
    await expect(pull.next()).rejects.toThrow("a bug");
    expect(await pull.next()).toBeNull();
  });

  test("by `return` releases blocks that were not taken, now and later", async () => {
    const shelf = start();
    const blocks = [1, 2, 3].map((i) => shelf.put(i, { tier: "ssd" }));
    const pull = pulling(
      world.server,
      blocks.map((block) => itemOf(block)),
    );
    const first = pull.next();
    await waitFor(() => shelf.reads.length === 3);
    shelf.reads[0]!.finish();
    shelf.reads[1]!.finish();
    const served = blockOf(await first);
    await pull.iterator.return!();
    expect(await pull.next()).toBeNull();
    expect([shelf.lent, world.server.stats.reads]).toEqual([1, 1]);
    shelf.reads[2]!.finish();
    await waitFor(() => world.server.stats.reads === 0);
    expect([shelf.lent, world.server.stats.lentBytes]).toEqual([1, MIB]);
    served.release();
  });

  test("by its signal also ends while it waits, and the transport keeps its blocks", async () => {
    const shelf = start();
    const pull = pulling(world.server, [
      itemOf(shelf.put(1)),
      itemOf(shelf.put(2, { tier: "ssd" })),
    ]);
    const served = blockOf(await pull.next());
    const waiting = pull.next();
    await waitFor(() => shelf.reads.length === 1);
    pull.abort();
    expect(await waiting).toBeNull();
    expect([shelf.lent, world.server.stats.openPulls]).toEqual([1, 0]);
    shelf.reads[0]!.fail(new Error("aborted"));
    await waitFor(() => world.server.stats.reads === 0);
    served.release();
    expect(world.lines).toEqual([]);
  });

  test("before it began does nothing", async () => {
    const shelf = start();
    const pull = pulling(world.server, [itemOf(shelf.put(1))]);
    pull.abort();
    expect(await pull.next()).toBeNull();
    expect([shelf.lends, world.server.stats.pulls]).toEqual([0, 0]);
  });

  test("by shutdown also ends while it waits, and releases blocks being read", async () => {
    const shelf = start();
    const pull = pulling(world.server, [itemOf(shelf.put(1, { tier: "ssd" }))]);
    const waiting = pull.next();
    await waitFor(() => shelf.reads.length === 1);
    world.server[Symbol.dispose]();
    expect(await waiting).toBeNull();
    shelf.reads[0]!.finish();
    await waitFor(() => world.server.stats.reads === 0);
    expect(await drain(pulling(world.server, [itemOf(shelf.put(2))]))).toEqual([]);
  });
});

describe("a pull past its deadline", () => {
  test("gets busy for each block, and releases a late one", async () => {
    const shelf = start();
    const items = [1, 2].map((i) => itemOf(shelf.put(i, { tier: "ssd" })));
    const seen = drain(pulling(world.server, items, { deadlineMs: 300 }));
    await waitFor(() => shelf.reads.length === 2);
    expect(shelf.reads.map(({ deadlineMs }) => deadlineMs)).toEqual([300, 300]);
    world.clock.advance(300);
    expect((await seen).sort()).toEqual(["0 busy", "1 busy"]);
    expect(world.server.stats.openPulls).toBe(0);
    for (const read of shelf.reads) read.finish();
    await waitFor(() => world.server.stats.reads === 0);
  });

  test("releases blocks that were read but not taken in time", async () => {
    const shelf = start();
    const items = [1, 2, 3].map((i) => itemOf(shelf.put(i, { tier: "ssd" })));
    const pull = pulling(world.server, items, { deadlineMs: 300 });
    const first = pull.next();
    await waitFor(() => shelf.reads.length === 3);
    for (const read of shelf.reads) read.finish();
    blockOf(await first).release();
    await waitFor(() => world.server.stats.reads === 0);
    expect(shelf.lent).toBe(2);
    world.clock.advance(301);
    expect(await drain(pull)).toEqual(["2 busy", "1 busy"]);
  });

  test("ends after the server's own maximum at the latest", async () => {
    const shelf = start({ deadlineMaxMs: 100 });
    const seen = drain(pulling(world.server, [itemOf(shelf.put(1, { tier: "ssd" }))]));
    await waitFor(() => shelf.reads.length === 1);
    world.clock.advance(100);
    expect(await seen).toEqual(["0 busy"]);
    shelf.reads[0]!.finish("busy");
    await waitFor(() => world.server.stats.reads === 0);
  });
});
