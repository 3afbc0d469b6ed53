import { expect, test } from "bun:test";
import { PullKit } from "./pull-kit.ts";

const HANG = () => ({ answer: "hang", afterMs: 0 }) as const;

async function train(kit: PullKit): Promise<void> {
  for (let i = 0; i < 20; i++)
    await kit.kinds(kit.pull([100 + i], { sources: ["a" as never, "b" as never] }));
}

test("after the usual time a second one is asked; the first to have it whole wins", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  await train(kit);
  kit.host("a").behave = HANG;
  const began = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([1, 2], { sources: ["a" as never, "b" as never] }))).toEqual([
    ...["ok", "ok"],
  ]);
  expect(kit.clock.monotonicMs() - began).toBeLessThan(12);
  expect(kit.puller.stats).toMatchObject({ hedges: 2, hedgesWon: 2 });
  await kit.clock.advanceAsync(2, 1);
  expect(kit.host("a").stopped).toBe(1);
  expect(kit.events).toMatchObject([{ kind: "peer_slow", worker: "a" }]);
});

test("who was slow is asked last for a while; slow again and again, not at all", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  await train(kit);
  const sources = ["a" as never, "b" as never];
  kit.host("a").behave = HANG;
  for (let i = 0; i < 10; i++) await kit.kinds(kit.pull([i], { sources }));
  expect(kit.puller.stats.hedges).toBe(1);
  for (let round = 0; round < 2; round++) {
    await kit.clock.advanceAsync(1_001);
    await kit.kinds(kit.pull([20 + round], { sources }));
  }
  expect(kit.kindsOfEvents()).toEqual(["peer_slow", "peer_slow", "peer_slow", "breaker_opened"]);
  const pulls = kit.host("a").pulls;
  await kit.kinds(kit.pull([30], { sources }));
  expect(kit.host("a").pulls).toBe(pulls);
});

test("the first peer wins if it is faster after all", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  await train(kit);
  kit.host("a").behave = () => ({ answer: "came", afterMs: 20 });
  kit.host("b").behave = () => ({ answer: "came", afterMs: 50 });
  const sources = ["a" as never, "b" as never];
  expect(await kit.kinds(kit.pull([1], { sources }))).toEqual(["ok"]);
  expect(kit.puller.stats).toMatchObject({ hedges: 1, hedgesWon: 0 });
  expect(kit.blocks.commits).toBe(21);
});

test("hedges are bounded, however slow all peers are", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"], limits: { itemsMax: 1 } });
  await train(kit);
  for (const host of kit.hosts.values()) host.behave = () => ({ answer: "came", afterMs: 40 });
  const all = Array.from({ length: 100 }, (_, i) => kit.kinds(kit.pull([1_000 + i])));
  expect(new Set((await Promise.all(all)).flat())).toEqual(new Set(["ok"]));
  expect(kit.puller.stats.hedges).toBeGreaterThan(0);
  expect(kit.puller.stats.hedges).toBeLessThan(30);
});

test("one that does not say how long a block is is not waited for alone", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.blocks.usual = 0;
  kit.host("a").hasHangs = true;
  const began = kit.clock.monotonicMs();
  const sources = ["a" as never, "b" as never];
  expect(await kit.kinds(kit.pull([1, 2], { sources }))).toEqual(["ok", "ok"]);
  expect(kit.clock.monotonicMs() - began).toBeLessThan(270);
  kit.host("a").hasHangs = false;
  kit.host("a").dialHangs.add("stream");
  kit.host("a").breakLinks();
  const second = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([3], { sources }))).toEqual(["ok"]);
  expect(kit.clock.monotonicMs() - second).toBeLessThan(270);
});

test("without a second peer the first is waited for", async () => {
  await using kit = new PullKit();
  kit.host("a").behave = () => ({ answer: "came", afterMs: 900 });
  expect(await kit.kinds(kit.pull([1]))).toEqual(["ok"]);
  expect(kit.puller.stats.hedges).toBe(0);
});

test("a process that stood still does not blame its peers for it", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  await train(kit);
  kit.host("a").behave = () => ({ answer: "came", afterMs: 2 });
  const pulling = kit.pull([1], { sources: ["a" as never] });
  await kit.clock.advanceAsync(1);
  kit.clock.stall(5_000);
  expect(await kit.kinds(pulling)).toEqual(["ok"]);
  expect(kit.events).toEqual([]);
  expect(kit.puller.stats.hedges).toBe(0);
});

test("a hedge goes to a known holder if only one source was named", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.holders = () => ["b"];
  kit.host("a").behave = () => ({ answer: "hang", afterMs: 0 });
  const options = { sources: ["a" as never], deadlineMs: 1_000 };
  expect(await kit.kinds(kit.pull([1], options))).toEqual(["ok"]);
  expect(kit.puller.stats).toMatchObject({ hedges: 1, hedgesWon: 1 });
});
