import { expect } from "bun:test";
import { LAYER_ALL, seededRandom } from "../../../src/core/index.ts";
import { blockKeys } from "../../../src/identity/index.ts";
import { BlockServer, SERVE_LIMITS } from "../../../src/peers/server/index.ts";
import { decodePart, encodeFrame, readKeyFilter } from "../../../src/peers/wire/index.ts";
import { digestOf } from "../../store/names.ts";
import type { SsdKit } from "../../store/ssd/ssd-kit.ts";
import { useSsdKit } from "../../store/ssd/use-kit.ts";
import { namespaceKey } from "../../store/store-kit.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { describeNative } from "../../support/index.ts";
import { HELLO, itemOf, peer } from "./shelf.ts";

const KEY = namespaceKey(1);

function serve(kit: SsdKit): BlockServer {
  return new BlockServer({
    blocks: kit.store.peerBlocks,
    namespaceOf: (key) => kit.namespaces.find(key),
    modelOf: () => "",
    hello: () => HELLO,
    limits: SERVE_LIMITS,
    clock: kit.clock,
    random: seededRandom(1),
    log: (_level, text) => {
      throw new Error(text);
    },
  });
}

const addressOf = (name: string) => ({ digest: digestOf(name), layer: LAYER_ALL });

describeNative("a server over a real store", () => {
  const it = useSsdKit();

  it("sends blocks from RAM and from SSD with their bytes", {}, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a", "a/b");
    await kit.settled();
    kit.leaveRam();
    await engine.put("c");
    using server = serve(kit);
    const items = ["a", "a/b", "c", "none"].map((name) => itemOf(addressOf(name)));
    const pull = { op: "pull" as const, namespace: KEY, items, deadlineMs: 5_000 };
    const seen: string[] = [];
    for await (const served of server.serve(peer("client"), pull, new AbortController().signal)) {
      seen.push(`${served.index} ${served.kind}`);
      if (served.kind !== "block") continue;
      const { header, offset, index } = served;
      expect(kit.store.region.checksum(offset, header.bytes)).toBe(header.checksum);
      expect(decodePart(encodeFrame(index, header))).toMatchObject({ ok: true, part: { header } });
      served.release();
    }
    expect(seen.slice(0, 2)).toEqual(["3 absent", "2 block"]);
    expect(seen.sort()).toEqual(["0 block", "1 block", "2 block", "3 absent"]);
    expect(server.stats).toMatchObject({ lentBlocks: 0, lentBytes: 0, reads: 0, openPulls: 0 });
    verifyStore(kit.store);
  });

  it("resolves a name in served namespaces only, however many others have it", {}, async ({
    kit,
  }) => {
    const hash = new Uint8Array(8).fill(7);
    const alias = 0x0707_0707_0707_0707n;
    const foreign = Array.from({ length: 5 }, (_, i) => ({ name: `x${i}`, alias }));
    await kit.engine(2).put(...foreign);
    await kit.engine().put({ name: "a", alias });
    const { peerBlocks } = kit.store;
    const isOurs = (namespace: Uint8Array) => namespace.toHex() === KEY.toHex();
    expect(peerBlocks.find(hash, 5).some(({ namespace }) => isOurs(namespace))).toBe(false);
    using server = serve(kit);
    server.configure({ ...SERVE_LIMITS, namespaces: new Set([KEY.toHex()]) });
    const answer = await server.call(peer("client"), { op: "find", names: [hash] });
    const digest = new Uint8Array(digestOf("a"));
    expect(answer).toMatchObject({ op: "find", found: [[{ digest }]] });
    expect(peerBlocks.find(hash, 1, isOurs)).toHaveLength(1);
  });

  it("summarizes RAM and SSD", {}, async ({ kit, host }) => {
    const names = ["a", "a/b", "c"];
    await kit.engine().put("a", "a/b");
    await kit.settled();
    kit.leaveRam();
    await kit.engine().put("c");
    using server = serve(kit);
    const ask = { op: "summary", namespace: KEY, known: 0n } as const;
    const answer = await server.call(peer("client"), ask);
    const filter = answer.op === "summary" ? answer.filter : null;
    const read = readKeyFilter(filter ?? new Uint8Array(0));
    if (!read.ok) throw new Error(read.why);
    const digests = new Uint8Array([...names, "none"].flatMap((name) => [...digestOf(name)]));
    const keys = blockKeys(host.native, digests, LAYER_ALL);
    const has = [0, 1, 2, 3].map((i) => read.filter.mayContain(keys, 32 * i));
    expect([read.filter.keys, ...has]).toEqual([3, true, true, true, false]);
  });
});
