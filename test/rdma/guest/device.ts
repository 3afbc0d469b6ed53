/** The port of RDMA on a device that the kernel drives: what the stand-in promises must hold. */
import { describe, expect, test } from "bun:test";
import {
  loadNative,
  openRdma,
  type Rdma,
  type RdmaAddress,
  type RdmaLink,
  type RdmaOptions,
} from "../../../src/native/index.ts";
import { testRegion } from "../../support/region-server.ts";

const MIB = 2 ** 20;
const BYTES = 64 * MIB;
/** Where what is read goes: the first half is lent. */
const HERE = BYTES / 2;
const SETTINGS = { timeout: 14, retries: 5, trafficClass: 0, serviceLevel: 0, pieceBytes: 65_536 };
const region = testRegion(BYTES);

function open(more: Partial<RdmaOptions> = {}): Rdma {
  return openRdma(loadNative(), {
    ...{ region, library: process.env.HEARTH_TEST_VERBS ?? null, devices: null, gidIndex: null },
    ...{ windowBytes: 32 * MIB, windowSpans: 64, linksMax: 8, readsMax: 256 },
    onPort: () => undefined,
    ...more,
  });
}

/** Two ends of one link, both on this device. */
function linked(rdma: Rdma): { owner: RdmaLink; asker: RdmaLink } {
  const { index } = rdma.ports().find(({ state }) => state === "active")!;
  const [owner, asker] = [rdma.link(index, SETTINGS), rdma.link(index, SETTINGS)];
  owner.connect(asker.address);
  asker.connect(owner.address);
  return { owner, asker };
}

/** Lends what it has filled with the pattern of `seed`. */
async function lend(owner: RdmaLink, offset: number, bytes: number, seed: bigint) {
  region.fill(offset, bytes, seed);
  const { token, lent } = owner.lend(offset, bytes);
  const given = await lent;
  if (!given.ok) throw new Error(`not lent: ${given.fault}`);
  return { token, window: given.window };
}

describe("a real device", () => {
  test("is found with an address that can be routed, and its limits", async () => {
    await using rdma = open();
    expect({ state: rdma.state, errno: rdma.errno }).toEqual({ state: "ready", errno: 0 });
    const [port] = rdma.ports();
    expect(port).toMatchObject({ device: "rxe0", number: 1, state: "active", mtu: 4_096 });
    expect(port).toMatchObject({ linkLayer: "ethernet", isRoceV2: true });
    // Of IPv4: zeroes, ffff and the rail's address.
    expect([...port!.gid.subarray(10, 14)]).toEqual([0xff, 0xff, 10, 77]);
    for (const most of [port!.readsOut, port!.readsIn]) expect(most).toBeGreaterThan(0);
    expect(port!.messageBytesMax).toBeGreaterThanOrEqual(8 * MIB);
    // Software has no path to the memory of a GPU.
    expect(port!.hasDmaBuf).toBe(false);
  });

  test("is not there where another is asked for by name", async () => {
    await using rdma = open({ devices: ["mlx5_9"] });
    expect(rdma.state).toBe("no_device");
    expect(rdma.ports()).toEqual([]);
  });

  test("reads spans of any length whole, in pieces and in one", async () => {
    await using rdma = open();
    const { owner, asker } = linked(rdma);
    for (const [at, bytes] of [1, 4_095, 65_536, 65_537, 1_000_003, 4 * MIB].entries()) {
      const seed = BigInt(at + 1);
      const { token, window } = await lend(owner, 7 * at, bytes, seed);
      region.fill(HERE, bytes + 4_096, 99n);
      const tail = region.checksum(HERE + bytes, 4_096);
      const read = await asker.read(window, HERE, bytes).done;
      expect(read).toEqual({ ok: true, checksum: region.checksum(HERE, bytes) });
      expect(region.firstWrong(HERE, bytes, seed)).toBeNull();
      expect(region.checksum(HERE + bytes, 4_096)).toBe(tail);
      await owner.takeBack(token);
    }
  });

  test("carries many reads at once", async () => {
    await using rdma = open();
    const { owner, asker } = linked(rdma);
    const bytes = 128 * 1024;
    const all = Array.from({ length: 32 }, async (_, at) => {
      const { token, window } = await lend(owner, at * bytes, bytes, BigInt(at));
      const { done } = asker.read(window, HERE + at * bytes, bytes);
      expect((await done).ok).toBe(true);
      expect(region.firstWrong(HERE + at * bytes, bytes, BigInt(at))).toBeNull();
      await owner.takeBack(token);
    });
    await Promise.all(all);
  });

  test("ends the link where a span is read after it was taken back", async () => {
    await using rdma = open();
    const { owner, asker } = linked(rdma);
    const { token, window } = await lend(owner, 0, 65_536, 5n);
    await owner.takeBack(token);
    region.fill(HERE, 65_536, 99n);
    expect(await asker.read(window, HERE, 65_536).done).toMatchObject({ ok: false });
    expect(await asker.ended).toBe("broken");
    expect(region.firstWrong(HERE, 65_536, 99n)).toBeNull();
  });

  test("lets nobody read a byte more than was lent, nor with another key", async () => {
    await using rdma = open();
    for (const wrong of [
      { address: 1n, key: 0 },
      { address: -1n, key: 0 },
      { address: 0n, key: 1 },
    ]) {
      const { owner, asker } = linked(rdma);
      const { window } = await lend(owner, 8_192, 65_536, 5n);
      const { address, key } = window;
      const other = { address: address + wrong.address, key: (key ^ wrong.key) >>> 0 };
      expect(await asker.read(other, HERE, 65_536).done).toMatchObject({ ok: false });
      expect(await asker.ended).toBe("broken");
      await owner[Symbol.asyncDispose]();
    }
  });

  test("ends in bounded time where the other side is no more, and each read with it", async () => {
    await using rdma = open();
    const { owner, asker } = linked(rdma);
    const { window } = await lend(owner, 0, 4 * MIB, 5n);
    await owner[Symbol.asyncDispose]();
    const reads = [0, 1, 2].map((at) => asker.read(window, HERE + at * 8 * MIB, 4 * MIB).done);
    for (const read of await Promise.all(reads)) expect(read.ok).toBe(false);
    expect(["broken", "port"]).toContain(await asker.ended);
  });

  test("gives a cancelled read back when nothing of it is under way", async () => {
    await using rdma = open();
    const { owner, asker } = linked(rdma);
    const { token, window } = await lend(owner, 0, 16 * MIB, 5n);
    const { token: read, done } = asker.read(window, HERE, 16 * MIB);
    asker.cancel(read);
    const ended = await done;
    if (!ended.ok) expect(ended.fault).toBe("cancelled");
    region.fill(HERE, 16 * MIB, 99n);
    await owner.takeBack(token);
    expect(region.firstWrong(HERE, 16 * MIB, 99n)).toBeNull();
    // The link goes on.
    const next = await lend(owner, 0, 4_096, 6n);
    expect((await asker.read(next.window, HERE, 4_096).done).ok).toBe(true);
  });

  test("takes no address of a host that is not there for one that is", async () => {
    await using rdma = open();
    const { index } = rdma.ports()[0]!;
    const asker = rdma.link(index, { ...SETTINGS, timeout: 10, retries: 2 });
    const gid = new Uint8Array(asker.address.gid);
    const nowhere: RdmaAddress = { ...asker.address, gid, queuePair: 0x777, psn: 1 };
    asker.connect(nowhere);
    const read = await asker.read({ address: 4_096n, key: 1 }, HERE, 4_096).done;
    expect(read.ok).toBe(false);
    expect(await asker.ended).toBe("broken");
  });
});
