import { expect, test } from "bun:test";
import { block, PullKit } from "./pull-kit.ts";

const TWO = { hosts: ["a", "b"] } as const;
const BOTH_WAYS = { transports: ["stream", "quic"] } as const;

test("if a server dies in the middle of a pull, received blocks stay and a second server sends the rest", async () => {
  await using kit = new PullKit(TWO);
  let answers = 0;
  kit.host("a").behave = () => ({ answer: ++answers > 2 ? "break" : "came", afterMs: 1 });
  expect(await kit.kinds(kit.pull([1, 2, 3, 4]))).toEqual(["ok", "ok", "ok", "ok"]);
  expect(kit.host("b").itemsAsked).toEqual([2]);
  expect(kit.kindsOfEvents()).toEqual(["transport_down", "breaker_opened"]);
  const [a] = kit.puller.peers();
  expect(a).toMatchObject({ state: "down", breaker: "open", failures: 1 });
  expect(a?.lastFault).toContain("broken");
});

test("a transport that cannot be dialled: the same request goes over the next", async () => {
  await using kit = new PullKit(BOTH_WAYS);
  kit.host("a").unreachable.add("stream");
  expect(await kit.kinds(kit.pull([1, 2]))).toEqual(["ok", "ok"]);
  expect(kit.puller.stats.byTransport.quic).toEqual({ blocks: 2, bytes: 2_000, fallbacks: 0 });
  expect(kit.puller.stats.byTransport.stream.fallbacks).toBe(1);
  expect(kit.kindsOfEvents()).toEqual(["transport_down"]);
  const [a] = kit.puller.peers();
  expect(a).toMatchObject({ breaker: "closed", transport: "quic" });
  expect(a?.transportsDown).toMatchObject([{ name: "stream" }]);
});

test("a transport that broke in the middle: the same slots are filled over the next", async () => {
  await using kit = new PullKit(BOTH_WAYS);
  let streams = 0;
  kit.host("a").behave = (_, transport) => ({
    answer: transport === "stream" && ++streams > 1 ? "break" : "came",
    afterMs: 1,
  });
  expect(await kit.kinds(kit.pull([1, 2, 3]))).toEqual(["ok", "ok", "ok"]);
  expect(kit.blocks.places.size).toBe(3);
  expect(kit.puller.stats.fallbacks).toBe(1);
});

test("a transport that failed is tried again after its cooldown, and is used again", async () => {
  await using kit = new PullKit(BOTH_WAYS);
  kit.host("a").unreachable.add("stream");
  await kit.kinds(kit.pull([1]));
  await kit.kinds(kit.pull([2]));
  expect(kit.host("a").dials).toBe(2);
  kit.host("a").unreachable.clear();
  await kit.clock.advanceAsync(1_100, 100);
  await kit.kinds(kit.pull([3]));
  expect(kit.puller.stats.byTransport.stream.blocks).toBe(1);
  expect(kit.kindsOfEvents()).toEqual(["transport_down", "transport_up"]);
});

test("a dial that hangs times out and counts as the transport's fault", async () => {
  await using kit = new PullKit(BOTH_WAYS);
  kit.host("a").dialHangs.add("stream");
  expect(await kit.kinds(kit.pull([1]))).toEqual(["ok"]);
  const [trace] = kit.puller.traces(null);
  expect(trace?.steps.at(-1)?.ms).toBeLessThan(1_010);
  expect(kit.puller.stats.fallbacks).toBe(1);
});

test("no peer is left: a miss, with the reason in the trace", async () => {
  await using kit = new PullKit(TWO);
  kit.host("a").unreachable.add("stream");
  kit.host("b").behave = () => ({ answer: { refused: "not this namespace" }, afterMs: 1 });
  expect(await kit.kinds(kit.pull([1]))).toEqual(["miss"]);
  expect(kit.puller.stats.outcomes.failed).toBe(1);
  const told = kit.puller.traces(null)[0]!.steps.map(({ what }) => what);
  expect(told).toContain("refused: not this namespace");
  expect(told.at(-1)).toBe("failed: no candidate is left");
});

test("a peer that is down is left alone, tried after its cooldown, and used again", async () => {
  await using kit = new PullKit();
  const a = kit.host("a");
  a.unreachable.add("stream");
  expect(await kit.kinds(kit.pull([1]))).toEqual(["miss"]);
  expect(await kit.kinds(kit.pull([2]))).toEqual(["miss"]);
  expect(a.dials).toBe(1);
  expect(kit.puller.whyNot(1 as never, [block(2)])).toBe("no peer is reachable");
  await kit.clock.advanceAsync(1_001);
  expect(await kit.kinds(kit.pull([3]))).toEqual(["miss"]);
  expect(a.dials).toBe(2);
  a.unreachable.clear();
  await kit.clock.advanceAsync(1_001);
  expect(await kit.kinds(kit.pull([4]))).toEqual(["miss"]);
  expect(a.dials).toBe(2);
  await kit.clock.advanceAsync(1_001);
  const trial = kit.pull([5]);
  const beside = kit.pull([6]);
  expect(await kit.kinds(trial)).toEqual(["ok"]);
  expect(await kit.kinds(beside)).toEqual(["miss"]);
  expect(await kit.kinds(kit.pull([7]))).toEqual(["ok"]);
  expect(kit.kindsOfEvents().at(-1)).toBe("breaker_closed");
});

test("a connection that ended while idle is opened again, and no peer is blamed", async () => {
  await using kit = new PullKit();
  const a = kit.host("a");
  await kit.kinds(kit.pull([1]));
  const pulling = kit.pull([2]);
  a.breakLinks("it closed an idle link");
  expect(await kit.kinds(pulling)).toEqual(["ok"]);
  expect(a.dials).toBe(2);
  expect(kit.events).toEqual([]);
});

for (const answer of ["corrupt", "otherDigest"] as const) {
  test(`invalid data (${answer}) is discarded, and another peer is asked`, async () => {
    await using kit = new PullKit(TWO);
    kit.host("a").behave = () => ({ answer, afterMs: 1 });
    expect(await kit.kinds(kit.pull([1]))).toEqual(["ok"]);
    expect(kit.puller.stats.corrupt).toBe(1);
    expect(kit.events).toMatchObject([{ kind: "peer_corrupt", worker: "a" }]);
    kit.holders = () => ["a"];
    kit.host("a").behave = () => ({ answer: "came", afterMs: 1 });
    expect(await kit.kinds(kit.pull([1]))).toEqual(["miss"]);
    expect(await kit.kinds(kit.pull([2]))).toEqual(["ok"]);
  });
}

test("who is corrupt three times within a minute is left alone", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.host("a").behave = () => ({ answer: "corrupt", afterMs: 1 });
  expect(await kit.kinds(kit.pull([1, 2, 3], { sources: ["a" as never] }))).toEqual([
    ...["ok", "ok", "ok"],
  ]);
  expect(kit.kindsOfEvents()).toEqual([
    ...["peer_corrupt", "peer_corrupt", "peer_corrupt", "breaker_opened"],
  ]);
});

test("valid answers in between do not excuse corrupt ones", async () => {
  await using kit = new PullKit();
  let asked = 0;
  kit.host("a").behave = () => ({ answer: asked++ % 2 === 0 ? "corrupt" : "came", afterMs: 1 });
  for (let i = 0; i < 5; i++) await kit.kinds(kit.pull([i]));
  expect(kit.kindsOfEvents().at(-1)).toBe("breaker_opened");
  await kit.clock.advanceAsync(1_001);
  for (let i = 5; i < 11; i++) {
    await kit.kinds(kit.pull([i]));
    await kit.clock.advanceAsync(31_000, 1_000);
  }
  expect(kit.kindsOfEvents().filter((kind) => kind === "breaker_opened")).toHaveLength(1);
});

test("a copy that is not the one it said it has is corrupt", async () => {
  await using kit = new PullKit();
  kit.blocks.usual = 0;
  kit.host("a").behave = () => ({ answer: "otherGeneration", afterMs: 1 });
  expect(await kit.kinds(kit.pull([1]))).toEqual(["miss"]);
  expect(kit.puller.stats).toMatchObject({ corrupt: 1, outcomes: { corrupt: 1 } });
});

test("one that stalls is given up, and the other asked, before its place is free", async () => {
  await using kit = new PullKit({ ...TWO, stopMs: 500 });
  kit.host("a").behave = () => ({ answer: "hang", afterMs: 0 });
  kit.host("b").behave = () => ({ answer: { busyMs: 9_000 }, afterMs: 1 });
  const pulling = kit.pull([1], { deadlineMs: 3_000 });
  await kit.clock.advanceAsync(2_010, 1);
  expect(kit.host("a").stopped).toBe(1);
  expect(kit.kindsOfEvents()).toContain("breaker_opened");
  expect(kit.blocks.open).toBe(1);
  await kit.clock.advanceAsync(500, 10);
  expect(kit.blocks.open).toBe(0);
  expect(await kit.kinds(pulling)).toEqual(["miss"]);
});

test("an old connection that breaks on use is dialled again without blame", async () => {
  await using kit = new PullKit();
  const a = kit.host("a");
  await kit.kinds(kit.pull([1]));
  a.behave = () => ({ answer: a.dials === 1 ? "break" : "came", afterMs: 1 });
  expect(await kit.kinds(kit.pull([2, 3]))).toEqual(["ok", "ok"]);
  expect(a.dials).toBe(2);
  expect(kit.events).toEqual([]);
});

test("a trial that its caller cancelled lets the next one run", async () => {
  await using kit = new PullKit();
  const a = kit.host("a");
  a.unreachable.add("stream");
  await kit.kinds(kit.pull([1]));
  a.unreachable.clear();
  await kit.clock.advanceAsync(1_001);
  a.behave = () => ({ answer: "hang", afterMs: 0 });
  const stop = new AbortController();
  const trial = kit.kinds(kit.pull([2], { signal: stop.signal }));
  await kit.clock.advanceAsync(10, 1);
  expect(kit.puller.peers()[0]?.breaker).toBe("trial");
  stop.abort();
  await trial;
  await kit.clock.advanceAsync(2, 1);
  a.behave = () => ({ answer: "came", afterMs: 1 });
  expect(await kit.kinds(kit.pull([3]))).toEqual(["ok"]);
});

test("a link over which nothing comes is not used again, and closed after the rest", async () => {
  await using kit = new PullKit();
  const a = kit.host("a");
  a.behave = (digest) => {
    if (a.dials > 1) return { answer: "came", afterMs: 1 };
    return digest[0] === 2 ? { answer: "hang", afterMs: 0 } : { answer: "came", afterMs: 1_900 };
  };
  const hangs = kit.kinds(kit.pull([1]));
  await kit.clock.advanceAsync(500, 10);
  const slow = kit.kinds(kit.pull([2]));
  expect(await hangs).toEqual(["miss"]);
  expect([a.links.size, a.dials]).toEqual([1, 1]);
  expect(await slow).toEqual(["ok"]);
  await kit.clock.advanceAsync(1_000, 10);
  expect(a.links.size).toBe(0);
  expect(await kit.kinds(kit.pull([3]))).toEqual(["ok"]);
  expect([a.links.size, a.dials]).toEqual([1, 2]);
});

test("bytes that drip are no progress", async () => {
  await using kit = new PullKit();
  kit.host("a").behave = () => ({ answer: "came", afterMs: 1, trickle: 8_000 });
  const began = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([1]))).toEqual(["miss"]);
  expect(kit.clock.monotonicMs() - began).toBeLessThan(2_100);
});

test("one that is busy is asked again when it said so, or another at once", async () => {
  await using kit = new PullKit(TWO);
  let asked = 0;
  kit.holders = () => ["a"];
  kit.host("a").behave = () => ({
    answer: ++asked > 1 ? "came" : { busyMs: 300 },
    afterMs: 1,
  });
  const began = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([1]))).toEqual(["ok"]);
  expect(kit.clock.monotonicMs() - began).toBeGreaterThanOrEqual(300);
  kit.holders = () => ["a", "b"];
  kit.host("a").behave = () => ({ answer: { busyMs: 300 }, afterMs: 1 });
  const second = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([2]))).toEqual(["ok"]);
  expect(kit.clock.monotonicMs() - second).toBeLessThan(50);
});

test("a busy peer is waited for, longer each time", async () => {
  await using kit = new PullKit(TWO);
  let asked = 0;
  const answers = () => ({ answer: ++asked > 16 ? "came" : { busyMs: 1 }, afterMs: 1 }) as const;
  for (const host of kit.hosts.values()) host.behave = answers;
  expect(await kit.kinds(kit.pull([1], { deadlineMs: 5_000 }))).toEqual(["ok"]);
  asked = -100;
  expect(await kit.kinds(kit.pull([2], { deadlineMs: 5_000 }))).not.toEqual(["ok"]);
  expect(asked).toBeLessThan(-70);
});

test("a peer that is busy beyond the deadline is a miss without a wait", async () => {
  await using kit = new PullKit();
  kit.host("a").behave = () => ({ answer: { busyMs: 9_000 }, afterMs: 1 });
  const began = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([1], { deadlineMs: 5_000 }))).toEqual(["miss"]);
  expect(kit.clock.monotonicMs() - began).toBeLessThan(50);
  expect(kit.puller.stats.outcomes.busy).toBe(1);
});

test("a block of unknown size is asked about first; a longer one again", async () => {
  await using kit = new PullKit();
  kit.blocks.usual = 0;
  expect(await kit.kinds(kit.pull([1, 2]))).toEqual(["ok", "ok"]);
  expect(kit.host("a")).toMatchObject({ hasCalls: 1, itemsAsked: [2] });
  kit.blocks.usual = 400;
  expect(await kit.kinds(kit.pull([3]))).toEqual(["ok"]);
  expect([...kit.blocks.places.values()].map(({ bytes }) => bytes)).toEqual([
    ...[1_000, 1_000, 400, 1_000],
  ]);
});

test("a length that cannot be is its teller's fault, not the block's", async () => {
  await using kit = new PullKit(TWO);
  kit.blocks.usual = 0;
  kit.host("a").bytes = 2_000_000_000;
  expect(await kit.kinds(kit.pull([1], { sources: ["a" as never] }))).toEqual(["ok"]);
  kit.blocks.usual = 1_000;
  kit.host("a").behave = () => ({ answer: { tooLong: 10 }, afterMs: 1 });
  kit.holders = () => ["a"];
  expect(await kit.kinds(kit.pull([2]))).toEqual(["miss"]);
});

test("without room in RAM no peer is asked", async () => {
  await using kit = new PullKit();
  kit.blocks.roomBytes = 1_500;
  expect(await kit.kinds(kit.pull([1, 2]))).toEqual(["ok", "full"]);
  expect(kit.host("a").items).toBe(1);
  kit.blocks.present.add(block(3).digest.toHex());
  expect(await kit.kinds(kit.pull([3]))).toEqual(["miss"]);
});

test("a block that was removed here recently is not requested", async () => {
  await using kit = new PullKit();
  kit.blocks.removed.add(block(1).digest.toHex());
  expect(await kit.kinds(kit.pull([1, 2]))).toEqual(["miss", "ok"]);
  expect(kit.host("a").items).toBe(1);
});

test("a host that came back as another process starts with a clean slate", async () => {
  await using kit = new PullKit();
  const a = kit.host("a");
  a.unreachable.add("stream");
  await kit.kinds(kit.pull([1]));
  a.unreachable.clear();
  kit.members.tell("restarted", kit.members.get(a.worker)!);
  expect(await kit.kinds(kit.pull([2]))).toEqual(["ok"]);
  a.incarnation = 2n;
  a.breakLinks();
  expect(await kit.kinds(kit.pull([3]))).toEqual(["ok"]);
  await kit.clock.advanceAsync(5, 1);
  expect(kit.kindsOfEvents()).toContain("peer_restarted");
});

test("a host that went is forgotten, with its links", async () => {
  await using kit = new PullKit();
  await kit.kinds(kit.pull([1]));
  kit.members.tell("went", kit.members.get(kit.host("a").worker)!);
  await kit.clock.advanceAsync(1);
  expect(kit.host("a").links.size).toBe(0);
  expect(await kit.kinds(kit.pull([2]))).toEqual(["miss"]);
  expect(kit.puller.peers()).toEqual([]);
});

test("an idle connection is closed", async () => {
  await using kit = new PullKit();
  await kit.kinds(kit.pull([1]));
  expect(kit.host("a").links.size).toBe(1);
  await kit.clock.advanceAsync(60_001, 1_000);
  expect(kit.host("a").links.size).toBe(0);
});

test("a host that left and came back is asked again, beside the requests from before", async () => {
  await using kit = new PullKit();
  const a = kit.host("a");
  a.behave = () => ({ answer: "hang", afterMs: 0 });
  const record = kit.members.list()[0]!;
  // As many requests as one host serves at a time, and one that waits behind them.
  const before: ReturnType<PullKit["pull"]>[] = [];
  for (let i = 0; i < 17; i++) {
    before.push(kit.pull([i]));
    await kit.clock.advanceAsync(3, 1);
  }
  expect(a.items).toBe(16);
  kit.members.tell("went", record);
  kit.members.records.set(record.worker, record);
  a.behave = () => ({ answer: "came", afterMs: 1 });
  expect(await kit.kinds(kit.pull([100]))).toEqual(["ok"]);
  const [fresh] = kit.puller.traces(block(100).digest.toHex());
  expect(fresh!.steps.map(({ what }) => what).filter((what) => what.startsWith("closed"))).toEqual(
    [],
  );
  const all = Promise.all(before).then((some) => some.flat());
  expect(new Set(await kit.kinds(all))).toEqual(new Set(["ok"]));
});
