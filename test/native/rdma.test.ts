import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { NativeError, type RdmaQueuePairSettings } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import {
  HANG_MS,
  isReal,
  join,
  KIB,
  MIB,
  move,
  openPair,
  openSide,
  portOf,
  SETTINGS,
  verbsLibrary,
} from "./rdma-kit.ts";

/** An emulated host reads a hundred times slower than the stand-in. */
const SPAN = isReal ? 4 * MIB : 32 * MIB;
const SLOW = "delay=1;retry=100";

function statusOf(call: () => unknown): string {
  try {
    call();
    return "ok";
  } catch (error) {
    if (error instanceof NativeError) return error.status;
    throw error;
  }
}

/** These tests run on the stand-in, and on a real library if HEARTH_TEST_VERBS names one. */
describeNative("RDMA", () => {
  test("reports the properties of each port", async () => {
    await using side = openSide(verbsLibrary());
    expect(side.rdma.state).toBe("ready");
    const port = portOf(side);
    expect(side.rdma.ports()[port.index]).toEqual(port);
    expect(port.device).not.toBe("");
    expect(port.number).toBeGreaterThan(0);
    expect(port.gid).not.toEqual(new Uint8Array(16));
    expect([256, 512, 1024, 2048, 4096]).toContain(port.mtu);
    expect(port.readsOut).toBeGreaterThan(0);
    expect(port.readsIn).toBeGreaterThan(0);
    expect(port.messageBytesMax).toBeGreaterThan(0);
    // A link-local address is unusable for other hosts.
    if (port.linkLayer === "ethernet") {
      expect(port.isRoceV2).toBe(true);
      expect(port.gid[0]).not.toBe(0xfe);
    }
  });

  test("reads blocks of any length to their places", async () => {
    await using pair = openPair();
    const lengths = [1, 31, 4096, 65_537, 256 * KIB, 256 * KIB + 1, MIB + 7, 4 * MIB];
    let offset = 0;
    await Promise.all(
      lengths.map((bytes, i) => {
        const at = offset;
        offset += bytes + 100;
        return move(pair, at, bytes, BigInt(i));
      }),
    );
  });

  test("reads any blocks in parallel, in pieces of any size", async () => {
    const shape = fc.record({
      pages: fc.integer({ min: 1, max: 80 }),
      lengths: fc.array(fc.integer({ min: 1, max: 400_000 }), { minLength: 1, maxLength: 20 }),
    });
    await fc.assert(
      fc.asyncProperty(shape, async ({ pages, lengths }) => {
        await using pair = openPair({ settings: { pieceBytes: pages * 4096 } });
        let at = 0;
        const moves = lengths.map((bytes, i) => {
          const offset = at;
          at += bytes;
          return move(pair, offset, bytes, BigInt(i));
        });
        await Promise.all(moves);
      }),
      { seed: 5, numRuns: isReal ? 2 : 10 },
    );
  });

  test("reads far more blocks than fit into the window, in order", async () => {
    await using pair = openPair({ settings: { pieceBytes: 4 * KIB } });
    const bytes = 64 * KIB;
    const count = 100;
    pair.owner.arena.fill(0, bytes * count, 3n);
    const loan = pair.lender.lend(0, bytes * count);
    const lent = await loan.lent;
    if (!lent.ok) throw new Error(lent.fault);
    const over: number[] = [];
    const reads = Array.from({ length: count }, (_, i) => {
      const window = { ...lent.window, address: lent.window.address + BigInt(i * bytes) };
      return pair.reader.read(window, i * bytes, bytes).done.then((done) => {
        expect(done.ok).toBe(true);
        over.push(i);
      });
    });
    await Promise.all(reads);
    expect(pair.client.arena.firstWrong(0, bytes * count, 3n)).toBe(null);
    // Several threads compute the checksums, so adjacent reads may change places, but no more. Some
    // software devices finish all at once.
    if (!isReal) expect(over.every((read, i) => Math.abs(read - i) < 16)).toBe(true);
  });

  test("reads in both directions over one queue pair", async () => {
    await using pair = openPair();
    const back = {
      owner: pair.client,
      client: pair.owner,
      lender: pair.reader,
      reader: pair.lender,
      [Symbol.asyncDispose]: async () => {},
    };
    await Promise.all([move(pair, 0, MIB, 1n), move(back, 2 * MIB, MIB, 2n)]);
  });

  describe("memory that is not lent", () => {
    test.each([
      ["behind the loan", 1],
      ["before the loan", -1],
    ])("cannot be read: %s", async (_, by) => {
      await using pair = openPair({ plan: "retry=100" });
      pair.owner.arena.fill(0, MIB, 4n);
      pair.client.arena.fill(0, MIB, 9n);
      const lent = await pair.lender.lend(8192, 4096).lent;
      if (!lent.ok) throw new Error(lent.fault);
      const window = { ...lent.window, address: lent.window.address + BigInt(by) };
      const { done } = pair.reader.read(window, 8192, 4096);
      expect(await done).toEqual({ ok: false, fault: "broken" });
      expect(await pair.reader.ended).toBe("broken");
      expect(pair.client.arena.firstWrong(0, MIB, 9n)).toBe(null);
    });

    test("cannot be read with an old window", async () => {
      await using pair = openPair({ plan: "retry=100" });
      pair.client.arena.fill(0, 4096, 9n);
      const { token, lent } = pair.lender.lend(0, 4096);
      const window = await lent;
      if (!window.ok) throw new Error(window.fault);
      await pair.lender.takeBack(token);
      const { done } = pair.reader.read(window.window, 0, 4096);
      expect(await done).toEqual({ ok: false, fault: "broken" });
      expect(pair.client.arena.firstWrong(0, 4096, 9n)).toBe(null);
    });
  });

  test("takes back a lending that has just begun, repeatedly", async () => {
    await using pair = openPair();
    const { token, lent } = pair.lender.lend(0, 4096);
    await Promise.all([pair.lender.takeBack(token), pair.lender.takeBack(token)]);
    const outcome = await lent;
    if (!outcome.ok) expect(outcome.fault).toBe("cancelled");
    await pair.lender.takeBack(token);
    await move(pair, 0, 4096, 1n);
  });

  test("issues no more of a cancelled read, and continues with others", async () => {
    await using pair = openPair({ plan: SLOW, bytes: 2 * SPAN, settings: { pieceBytes: 4096 } });
    const { owner, client, lender, reader } = pair;
    owner.arena.fill(0, SPAN, 5n);
    const lent = await lender.lend(0, SPAN).lent;
    if (!lent.ok) throw new Error(lent.fault);
    const { token, done } = reader.read(lent.window, 0, SPAN);
    await waitFor(() => reader.arrived(token) > 0, HANG_MS);
    reader.cancel(token);
    expect(await done).toEqual({ ok: false, fault: "cancelled" });
    expect(reader.arrived(token)).toBe(0);
    // The span is not written any more.
    client.arena.fill(0, SPAN, 9n);
    await move(pair, SPAN, MIB, 7n);
    expect(client.arena.firstWrong(0, SPAN, 9n)).toBe(null);
  });

  test("resolves everything in flight when its own side ends the queue pair", async () => {
    await using pair = openPair({ plan: SLOW, bytes: SPAN, settings: { pieceBytes: 4096 } });
    const { client, lender, reader } = pair;
    const { token, lent } = lender.lend(0, SPAN);
    const outcome = await lent;
    if (!outcome.ok) throw new Error(outcome.fault);
    const read = reader.read(outcome.window, 0, SPAN);
    const order: string[] = [];
    void read.done.then(({ ok }) => order.push(`read ${ok}`));
    void reader.ended.then((fault) => order.push(fault));
    await waitFor(() => reader.arrived(read.token) > 0, HANG_MS);
    await reader[Symbol.asyncDispose]();
    const done = await read.done;
    // Some software devices have read everything before the cancellation.
    if (!(isReal && done.ok)) expect(done).toEqual({ ok: false, fault: "cancelled" });
    expect(order).toEqual([`read ${done.ok}`, "cancelled"]);
    client.arena.fill(0, SPAN, 9n);
    await lender[Symbol.asyncDispose]();
    await lender.takeBack(token);
    expect(client.arena.firstWrong(0, SPAN, 9n)).toBe(null);
    // A queue pair that has ended reports it for further requests.
    const late = reader.read(outcome.window, 0, 4096);
    expect(await late.done).toEqual({ ok: false, fault: "cancelled" });
    expect(await lender.lend(0, 4096).lent).toEqual({ ok: false, fault: "cancelled" });
    expect(statusOf(() => reader.connect(lender.address))).toBe("closed");
  });

  test("is broken when the other side ends the queue pair", async () => {
    await using pair = openPair({ plan: SLOW, bytes: SPAN, settings: { pieceBytes: 4096 } });
    const { lender, reader } = pair;
    const lent = await lender.lend(0, SPAN).lent;
    if (!lent.ok) throw new Error(lent.fault);
    const { token, done } = reader.read(lent.window, 0, SPAN);
    await waitFor(() => reader.arrived(token) > 0, HANG_MS);
    await lender[Symbol.asyncDispose]();
    expect(await done).toEqual({ ok: false, fault: "broken" });
    expect(await reader.ended).toBe("broken");
  });

  describe("is bounded", () => {
    test("in lent bytes and spans", async () => {
      await using pair = openPair({ windowBytes: 64 * KIB, windowSpans: 2 });
      const { lender } = pair;
      const full = { ok: false, fault: "full" } as const;
      expect(await lender.lend(0, 64 * KIB + 1).lent).toEqual(full);
      const first = lender.lend(0, 60 * KIB);
      expect(await lender.lend(0, 8 * KIB).lent).toEqual(full);
      const second = lender.lend(0, 4 * KIB);
      expect(await lender.lend(0, 1).lent).toEqual(full);
      expect((await Promise.all([first.lent, second.lent])).map(({ ok }) => ok)).toEqual([
        true,
        true,
      ]);
      await lender.takeBack(first.token);
      await lender.takeBack(second.token);
      expect((await lender.lend(0, 64 * KIB).lent).ok).toBe(true);
    });

    test("in reads", async () => {
      await using pair = openPair({ readsMax: 2 });
      const lent = await pair.lender.lend(0, MIB).lent;
      if (!lent.ok) throw new Error(lent.fault);
      const reads = [0, 1, 2].map((i) => pair.reader.read(lent.window, i * MIB, MIB).done);
      const outcomes = await Promise.all(reads);
      expect(outcomes.map((done) => done.ok)).toEqual([true, true, false]);
      expect(outcomes[2]).toEqual({ ok: false, fault: "full" });
    });

    test("in queue pairs", async () => {
      await using side = openSide(verbsLibrary(), { linksMax: 1 });
      const { index } = portOf(side);
      const link = side.rdma.link(index, SETTINGS);
      expect(statusOf(() => side.rdma.link(index, SETTINGS))).toBe("full");
      await link[Symbol.asyncDispose]();
      await side.rdma.link(index, SETTINGS)[Symbol.asyncDispose]();
    });
  });

  test("refuses invalid settings", async () => {
    await using side = openSide(verbsLibrary());
    const { index } = portOf(side);
    const bad: Partial<RdmaQueuePairSettings>[] = [
      { timeout: 0 },
      { timeout: 32 },
      { retries: 0 },
      { retries: 7 },
      { trafficClass: 256 },
      { serviceLevel: 16 },
      { pieceBytes: 0 },
      { pieceBytes: 5000 },
    ];
    for (const settings of bad) {
      const open = () => side.rdma.link(index, { ...SETTINGS, ...settings });
      expect(statusOf(open)).toBe("bad_request");
    }
    expect(statusOf(() => side.rdma.link(99, SETTINGS))).toBe("out_of_range");
    const link = side.rdma.link(index, SETTINGS);
    const address = { ...link.address };
    for (const wrong of [{ mtu: 1500 }, { readsIn: 0 }, { readsOut: 0 }, { psn: 2 ** 24 }]) {
      expect(statusOf(() => link.connect({ ...address, ...wrong }))).toBe("bad_request");
    }
    expect(statusOf(() => link.lend(0, 0))).toBe("bad_request");
    expect(statusOf(() => link.lend(16 * MIB - 1, 2))).toBe("out_of_range");
    const window = { address: 0n, key: 0 };
    expect(statusOf(() => link.read(window, 16 * MIB, 1))).toBe("out_of_range");
    link.connect(address);
    expect(statusOf(() => link.connect(address))).toBe("exists");
  });

  test("keeps many queue pairs apart", async () => {
    const library = verbsLibrary();
    await using owner = openSide(library);
    await using client = openSide(library);
    const pairs = Array.from({ length: 6 }, () => join(owner, client));
    await Promise.all(pairs.map((pair, i) => move(pair, i * MIB, MIB, BigInt(i))));
    // The end of one does not affect the others.
    await pairs[0]!.reader[Symbol.asyncDispose]();
    await Promise.all(pairs.slice(1).map((pair, i) => move(pair, i * MIB, MIB, BigInt(i + 50))));
  });
});
