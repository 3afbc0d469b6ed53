import { expect, test } from "bun:test";
import type { PeerRecord, TransportName } from "../../../src/peers/index.ts";
import { block, PullKit, SPACE } from "./pull-kit.ts";

const MIB = 2 ** 20;
const LARGE = { bytesMax: 1e9, peerBytesMax: 1e9, namespaceBytesMax: 1e9 };

function rdma(record: PeerRecord, has: boolean): PeerRecord {
  return { ...record, hardware: { hasRdmaNic: has, rdmaDevices: [], cores: 1, hasAes: true } };
}

async function usedBy(kit: PullKit): Promise<TransportName[]> {
  await kit.kinds(kit.pull([1]));
  return [...kit.host("a").links].map(({ transport }) => transport);
}

test("unmeasured, stream precedes quic; rdma needs both hosts", async () => {
  await using kit = new PullKit({ transports: ["quic", "rdma", "stream"] });
  kit.members.records.set(kit.host("a").worker, rdma(kit.members.list()[0]!, true));
  expect(await usedBy(kit)).toEqual(["stream"]);
});

test("rdma comes first if both hosts have it", async () => {
  await using kit = new PullKit({ transports: ["quic", "rdma", "stream"], hasRdmaNic: true });
  kit.members.records.set(kit.host("a").worker, rdma(kit.members.list()[0]!, true));
  expect(await usedBy(kit)).toEqual(["rdma"]);
});

test("rdma to a peer of unknown hardware is tried only if the operator lists it", async () => {
  const all = ["quic", "rdma", "stream"] as const;
  await using measured = new PullKit({ transports: all, hasRdmaNic: true });
  expect(await usedBy(measured)).toEqual(["stream"]);
  await using told = new PullKit({
    ...{ transports: all, hasRdmaNic: true },
    limits: { transports: ["rdma", "quic"] },
  });
  expect(await usedBy(told)).toEqual(["rdma"]);
  const wants = { transports: ["rdma", "quic"] } as const;
  await using without = new PullKit({ transports: all, limits: wants });
  expect(await usedBy(without)).toEqual(["quic"]);
});

test("the configured order applies, and transports not listed are not used", async () => {
  await using first = new PullKit({
    transports: ["stream", "quic"],
    limits: { transports: ["quic", "stream"] },
  });
  expect(await usedBy(first)).toEqual(["quic"]);
  await using only = new PullKit({ transports: ["stream"], limits: { transports: ["quic"] } });
  expect(await usedBy(only)).toEqual([]);
});

test("a transport that the peer does not offer is not used", async () => {
  await using kit = new PullKit({ transports: ["stream", "quic"] });
  const record = kit.members.list()[0]!;
  const endpoints = { quic: { host: "127.0.0.1", port: 1 } };
  kit.members.records.set(record.worker, { ...record, endpoints });
  expect(await usedBy(kit)).toEqual(["quic"]);
});

test("a transport that is clearly faster is used once that is measured", async () => {
  await using kit = new PullKit({
    transports: ["stream", "quic"],
    limits: { ...LARGE, transports: "auto" },
  });
  const a = kit.host("a");
  a.bytes = MIB;
  kit.blocks.usual = MIB;
  a.behave = (_, transport) => ({ answer: "came", afterMs: transport === "stream" ? 20 : 2 });
  for (let i = 0; i < 2_000 && kit.puller.stats.byTransport.quic.blocks === 0; i++)
    await kit.kinds(kit.pull([i]));
  const before = kit.puller.stats.byTransport;
  expect(before.quic.blocks).toBe(1);
  expect(before.stream.blocks).toBeGreaterThan(10);
  for (let i = 0; i < 50; i++) await kit.kinds(kit.pull([5_000 + i]));
  expect(kit.puller.stats.byTransport.quic.blocks).toBeGreaterThanOrEqual(50);
});

test("a block that is computed sooner is not pulled, and the reason is reported", async () => {
  await using kit = new PullKit({
    tokensPerBlock: 16,
    limits: { ...LARGE, prefillTokensPerS: 10_000 },
  });
  const a = kit.host("a");
  a.bytes = MIB;
  kit.blocks.usual = MIB;
  a.behave = () => ({ answer: "came", afterMs: 20 });
  const keys = new Uint32Array(block(7).digest.buffer);
  expect(kit.puller.promising(SPACE, keys, 0, 1)).toBe(1);
  expect(await kit.kinds(kit.pull([1, 2, 3]))).toEqual(["ok", "ok", "ok"]);
  expect(kit.puller.promising(SPACE, keys, 0, 1)).toBe(0);
  expect(await kit.kinds(kit.pull([4]))).toEqual(["miss"]);
  expect(kit.puller.stats.outcomes.unprofitable).toBe(1);
  expect(a.items).toBe(3);
  const why = kit.puller.whyNot(SPACE, [block(4)]);
  expect(why).toMatch(/^recomputing takes 1\.6 ms, fetching 1MiB from a at .*MiB\/s takes 2\d ms$/);
  expect(kit.puller.traces(null)[0]?.steps.at(-1)?.what).toBe(`unprofitable: ${why}`);
  expect(await kit.kinds(kit.pull([5], { always: true }))).toEqual(["ok"]);
  expect(await kit.kinds(kit.pull([6], { priority: "warm" }))).toEqual(["ok"]);
  await kit.clock.advanceAsync(61_000, 1_000);
  expect(await kit.kinds(kit.pull([8]))).toEqual(["ok"]);
});

test("a long run is profitable where one block is not: the round trip is paid once", async () => {
  await using kit = new PullKit({
    tokensPerBlock: 16,
    limits: { ...LARGE, prefillTokensPerS: 14_000 },
  });
  const a = kit.host("a");
  a.bytes = MIB;
  kit.blocks.usual = MIB;
  a.behave = () => ({ answer: "came", afterMs: 0.5 });
  await kit.kinds(kit.pull([1, 2, 3, 4, 5, 6, 7, 8]));
  expect(kit.puller.whyNot(SPACE, [block(20)])).toContain("recomputing takes 1.1 ms");
  const run = Array.from({ length: 16 }, (_, i) => block(20 + i));
  expect(kit.puller.whyNot(SPACE, run)).toBeNull();
});

test("a promising run ends at the first block without a known holder", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.holders = (digest) => (digest[0]! < 5 ? ["b"] : []);
  const keys = new Uint32Array(8 * 10);
  for (let i = 0; i < 10; i++) new Uint8Array(keys.buffer).set(block(i).digest, i * 32);
  expect(kit.puller.promising(SPACE, keys, 0, 10)).toBe(4);
  expect(kit.puller.promising(SPACE, keys, 2, 8)).toBe(2);
  expect(kit.puller.promising(SPACE, keys, 5, 5)).toBe(0);
  expect(kit.puller.whyNot(SPACE, [block(7)])).toBe("no reachable peer is known to have the block");
  kit.host("b").unreachable.add("stream");
  await kit.kinds(kit.pull([1]));
  expect(kit.puller.promising(SPACE, keys, 0, 10)).toBe(0);
});

test("among holders the one with the least queued is asked", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"], limits: LARGE });
  for (const host of kit.hosts.values()) {
    host.bytes = MIB;
    host.behave = () => ({ answer: "came", afterMs: 10 });
  }
  kit.blocks.usual = MIB;
  await kit.kinds(kit.pull([1], { sources: ["a" as never] }));
  await kit.kinds(kit.pull([2], { sources: ["b" as never] }));
  await kit.kinds(kit.pull(Array.from({ length: 20 }, (_, i) => 10 + i)));
  expect(kit.host("a").items).toBeGreaterThan(6);
  expect(kit.host("b").items).toBeGreaterThan(6);
});

test("slow small blocks do not make large ones unprofitable", async () => {
  await using kit = new PullKit({
    tokensPerBlock: 16,
    limits: { ...LARGE, prefillTokensPerS: 400 },
  });
  const a = kit.host("a");
  a.bytes = 64 * 1_024;
  kit.blocks.usual = 64 * 1_024;
  a.behave = () => ({ answer: "came", afterMs: 1.2 });
  for (let i = 0; i < 20; i++) await kit.kinds(kit.pull([i]));
  kit.blocks.usual = 2 * MIB;
  expect(kit.puller.whyNot(SPACE, [block(50)])).toBeNull();
});

/** A peer whose first block is slow, as after a start; later ones arrive at once. */
function slowAtFirst() {
  const kit = new PullKit({ tokensPerBlock: 16, limits: { ...LARGE, prefillTokensPerS: 1_000 } });
  const a = kit.host("a");
  a.bytes = 64 * 1_024;
  kit.blocks.usual = 64 * 1_024;
  a.behave = () => ({ answer: "came", afterMs: a.items === 1 ? 400 : 1 });
  return kit;
}

test("a single slow block does not make fetching unprofitable", async () => {
  await using kit = slowAtFirst();
  expect(await kit.kinds(kit.pull([1]))).toEqual(["ok"]);
  expect(kit.puller.whyNot(SPACE, [block(2)])).toBeNull();
  expect(await kit.kinds(kit.pull([2]))).toEqual(["ok"]);
  expect(kit.puller.promising(SPACE, new Uint32Array(block(3).digest.buffer), 0, 1)).toBe(1);
});

test("while fetching is unprofitable, one fetch per second probes the path", async () => {
  await using kit = new PullKit({
    tokensPerBlock: 16,
    limits: { ...LARGE, prefillTokensPerS: 1_600 },
  });
  const a = kit.host("a");
  a.bytes = MIB;
  kit.blocks.usual = MIB;
  let afterMs = 50;
  a.behave = () => ({ answer: "came", afterMs });
  await kit.kinds(kit.pull([1, 2, 3]));
  const keys = new Uint32Array(16);
  for (const at of [0, 1]) new Uint8Array(keys.buffer).set(block(100 + at).digest, 32 * at);
  expect(kit.puller.promising(SPACE, keys, 0, 2)).toBe(0);
  expect(await kit.kinds(kit.pull([10, 11]))).toEqual(["miss", "miss"]);
  await kit.clock.advanceAsync(1_000);
  // A probe fetches part of a run; the second caller finds it unprofitable.
  expect(kit.puller.promising(SPACE, keys, 0, 2)).toBe(1);
  const [first, second] = [kit.pull([12]), kit.pull([13])];
  expect([await kit.kinds(first), await kit.kinds(second)]).toEqual([["ok"], ["miss"]]);
  afterMs = 1;
  for (let i = 0; i < 10; i++) {
    await kit.clock.advanceAsync(1_000);
    await kit.kinds(kit.pull([20 + i]));
  }
  expect(await kit.kinds(kit.pull([40, 41]))).toEqual(["ok", "ok"]);
  expect(kit.puller.promising(SPACE, keys, 0, 2)).toBe(2);
});
