/**
 * What is true of the kernel's device and no stand-in can show. All else is in the native suite,
 * which runs here as well.
 */
import { describe, expect, test } from "bun:test";
import {
  loadNative,
  openRdma,
  type Rdma,
  type RdmaAddress,
  type RdmaOptions,
} from "../../../src/native/index.ts";
import { testRegion } from "../../support/region-server.ts";

const MIB = 2 ** 20;
const SETTINGS = { timeout: 14, retries: 5, trafficClass: 0, serviceLevel: 0, pieceBytes: 65_536 };
const region = testRegion(MIB);

function open(more: Partial<RdmaOptions> = {}): Rdma {
  return openRdma(loadNative(), {
    ...{ region, library: process.env.HEARTH_TEST_VERBS ?? null, devices: null, gidIndex: null },
    ...{ windowBytes: MIB, windowSpans: 8, linksMax: 8, readsMax: 8 },
    onPort: () => undefined,
    ...more,
  });
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

  test("takes no address of a host that is not there for one that is", async () => {
    await using rdma = open();
    const { index } = rdma.ports()[0]!;
    const asker = rdma.link(index, { ...SETTINGS, timeout: 10, retries: 2 });
    const gid = new Uint8Array(asker.address.gid);
    const nowhere: RdmaAddress = { ...asker.address, gid, queuePair: 0x777, psn: 1 };
    asker.connect(nowhere);
    const read = await asker.read({ address: 4_096n, key: 1 }, 0, 4_096).done;
    expect(read.ok).toBe(false);
    expect(await asker.ended).toBe("broken");
  });
});
