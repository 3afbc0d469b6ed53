import { expect, test } from "bun:test";
import type { NamespaceIndex } from "../../../src/core/index.ts";
import { describeNative } from "../../support/index.ts";
import { KeyHolder } from "../mac-kit.ts";
import { BLOCK_BYTES, seedOf } from "../names.ts";
import { openStoreKit, PAGE } from "../store-kit.ts";
import { PeerHost } from "./peer-kit.ts";

const PLANTED = 1_000;
const KEYED = 1 as NamespaceIndex;
const names = Array.from({ length: PLANTED }, (_, i) => `planted${i}`);
const holder = new KeyHolder();

function openKit(macKeys: ReadonlyMap<string, Uint8Array> = new Map()) {
  const kit = openStoreKit({ arenaBytes: 1_100 * 2 * PAGE, blocksMax: 2_048, macKeys });
  kit.store.namespaces.setMacKeyId(KEYED, holder.id);
  return kit;
}

/** The correct MAC of a block, computed over its slot. */
function rightMac(kit: ReturnType<typeof openKit>, name: string, offset: number): Uint8Array {
  kit.region.fill(offset, BLOCK_BYTES, seedOf(name));
  return holder.macOf(kit.region, { name, offset, bytes: BLOCK_BYTES });
}

describeNative("a peer without the key of a namespace", () => {
  test("cannot plant any of 1,000 blocks at an agent with the key", async () => {
    await using kit = openKit(holder.keys);
    const peer = new PeerHost(kit.store);
    const forged = crypto.getRandomValues(new Uint8Array(16));
    const ends = names.map((name, i) => {
      const mac = i % 2 === 0 ? forged : null;
      return peer.commit(name, peer.place(name), { mac }).kind;
    });
    expect(ends.filter((kind) => kind === "corrupt")).toHaveLength(PLANTED);
    expect(kit.snapshot().ramBlocks).toBe(0);
  });

  test("cannot plant any of 1,000 blocks at readers of an agent without the key", async () => {
    await using kit = openKit();
    const peer = new PeerHost(kit.store);
    const mac = crypto.getRandomValues(new Uint8Array(16));
    for (const name of names) peer.release(peer.bring(name, {}, { mac }));
    const engine = kit.engine(KEYED);
    const handles = engine.acquire(names);
    const accepted = handles.filter((handle) => holder.accepts(kit.region, handle, handle.mac));
    expect(handles.filter(({ outcome }) => outcome === "ok")).toHaveLength(PLANTED);
    expect(accepted).toHaveLength(0);
    engine.release(handles);
    kit.expectNothingLeft();
  });

  test("cannot deliver a block without a MAC to an agent that knows of the key", async () => {
    await using kit = openKit();
    const peer = new PeerHost(kit.store);
    const committed = peer.commit("a", peer.place("a"));
    expect(committed).toEqual({
      kind: "corrupt",
      why: "no MAC, but its namespace requires one",
    });
    const unkeyed = peer.bring("b", { namespace: 2 });
    peer.release(unkeyed);
  });
});

describeNative("a block with the right MAC", () => {
  test("is accepted, handed to engines with its MAC, and served with it", async () => {
    for (const keys of [holder.keys, new Map()]) {
      await using kit = openKit(keys);
      const peer = new PeerHost(kit.store);
      const landing = peer.place("a");
      const mac = rightMac(kit, "a", landing.offset);
      const committed = peer.commit("a", landing, { mac });
      if (committed.kind !== "ok") throw new Error(committed.why);
      peer.release(committed.arrival);
      const engine = kit.engine(KEYED);
      const [handle] = engine.acquire(["a"]);
      expect(handle!.mac).toEqual(mac);
      expect(holder.accepts(kit.region, handle!, handle!.mac)).toBe(true);
      engine.release([handle!]);
      const loan = await peer.borrow("a");
      expect(loan.mac).toEqual(mac);
      loan.release();
      kit.expectNothingLeft();
    }
  });
});
