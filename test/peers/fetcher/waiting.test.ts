import { expect, test } from "bun:test";
import { PullKit, type SPACE } from "./pull-kit.ts";

const HANG = () => ({ answer: "hang", afterMs: 0 }) as const;
const SLOW = (afterMs: number) => () => ({ answer: "came", afterMs }) as const;

test("a deadline ends the wait, and what still comes is kept for the next", async () => {
  await using kit = new PullKit();
  kit.host("a").behave = SLOW(300);
  expect(await kit.kinds(kit.pull([1], { deadlineMs: 100 }))).toEqual(["late"]);
  const joined = kit.pull([1], { deadlineMs: 1_000 });
  expect(await kit.kinds(joined)).toEqual(["ok"]);
  expect(kit.host("a").items).toBe(1);
  expect(await kit.kinds(kit.pull([2], { deadlineMs: 100 }))).toEqual(["late"]);
  await kit.clock.advanceAsync(300, 10);
  expect(kit.blocks.commits).toBe(2);
  expect(kit.blocks.released).toBe(2);
});

test("without mirroring a deadline stops the sender", async () => {
  await using kit = new PullKit({ limits: { mirrorPulls: false } });
  kit.host("a").behave = SLOW(300);
  expect(await kit.kinds(kit.pull([1], { deadlineMs: 100 }))).toEqual(["late"]);
  await kit.clock.advanceAsync(1);
  expect(kit.host("a").stopped).toBe(1);
  expect(kit.blocks.keeps).toEqual([false]);
  expect(kit.puller.stats.outcomes.late).toBe(1);
});

test("the signal stops the sender, and the place is free only when it has stopped", async () => {
  await using kit = new PullKit({ stopMs: 50 });
  kit.host("a").behave = HANG;
  const stop = new AbortController();
  const pulling = kit.pull([1, 2], { signal: stop.signal });
  await kit.clock.advanceAsync(20, 1);
  stop.abort();
  expect(await kit.kinds(pulling)).toEqual(["miss", "miss"]);
  expect(kit.blocks.open).toBe(2);
  expect(kit.host("a").stopped).toBe(1);
  await kit.clock.advanceAsync(60, 10);
  expect(kit.blocks.open).toBe(0);
  expect(kit.puller.stats.outcomes.aborted).toBe(2);
});

test("a caller that leaves does not stop the fetches of others", async () => {
  await using kit = new PullKit();
  kit.host("a").behave = SLOW(100);
  const stop = new AbortController();
  const goes = kit.pull([1], { signal: stop.signal });
  const stays = kit.pull([1]);
  await kit.clock.advanceAsync(20, 1);
  stop.abort();
  expect(await kit.kinds(goes)).toEqual(["miss"]);
  expect(await kit.kinds(stays)).toEqual(["ok"]);
});

test("the first miss makes the blocks after it useless", async () => {
  await using kit = new PullKit();
  let item = 0;
  kit.host("a").behave = () => ({ answer: item++ === 1 ? "absent" : "came", afterMs: 10 });
  const kinds = await kit.kinds(kit.pull([1, 2, 3, 4], { stopAtMiss: true }));
  expect(kinds).toEqual(["ok", "miss", "miss", "miss"]);
  await kit.clock.advanceAsync(5, 1);
  expect(kit.host("a").stopped).toBe(1);
  expect(kit.host("a").items).toBe(3);
});

test("blocks that arrived after a miss are released", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.holders = (digest) => (digest[0] === 2 ? ["a"] : ["b"]);
  kit.host("a").behave = () => ({ answer: "absent", afterMs: 100 });
  const kinds = await kit.kinds(kit.pull([1, 2], { stopAtMiss: true }));
  expect(kinds).toEqual(["miss", "miss"]);
  expect(kit.blocks.released).toBe(1);
  expect(kit.blocks.used).toBe(0);
});

test("a deadline before anything was requested leaves nothing behind", async () => {
  await using kit = new PullKit();
  expect(await kit.kinds(kit.pull([1, 1, 2], { deadlineMs: 0 }))).toEqual(["late", "late", "late"]);
  expect(await kit.kinds(kit.pull([]))).toEqual([]);
  const gone = AbortSignal.abort();
  expect(await kit.kinds(kit.pull([1], { signal: gone }))).toEqual(["miss"]);
});

test("an unknown namespace is a miss", async () => {
  await using kit = new PullKit();
  expect(await kit.kinds(kit.pull([1], {}, 9 as typeof SPACE))).toEqual(["miss"]);
  expect(kit.puller.whyNot(9 as typeof SPACE, [])).toBe("the namespace is not known here");
});

test("the end of the puller ends all that waits", async () => {
  const kit = new PullKit({ stopMs: 30 });
  kit.host("a").behave = HANG;
  const pulling = kit.pull([1, 2]);
  await kit.clock.advanceAsync(10, 1);
  const left = await kit.leftovers();
  expect(left).toEqual([]);
  expect(await kit.kinds(pulling)).toEqual(["miss", "miss"]);
  expect(await kit.kinds(kit.pull([3]))).toEqual(["miss"]);
});

test("an engine's request makes a background copy urgent", async () => {
  await using kit = new PullKit({ limits: { bytesMax: 1_000 } });
  kit.host("a").behave = SLOW(50);
  const order: string[] = [];
  const note = (name: string) => async (outcomes: { kind: string }[]) => {
    order.push(name);
    return outcomes;
  };
  const all = [
    kit.pull([1], { priority: "warm" }).then(note("first")),
    kit.pull([2], { priority: "mirror" }).then(note("mirror")),
    kit.pull([3], { priority: "warm" }).then(note("warm")),
    kit.pull([4], { priority: "acquire" }).then(note("acquire")),
    kit.pull([2], { priority: "acquire" }).then(note("hastened")),
  ];
  for (const outcomes of await kit.settle(Promise.all(all)))
    for (const one of outcomes as { kind: string; arrival?: { release(used: boolean): void } }[])
      one.arrival?.release(false);
  expect(order.indexOf("warm")).toBe(4);
  expect(order[0]).toBe("first");
});
