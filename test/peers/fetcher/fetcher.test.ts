import { expect, test } from "bun:test";
import { block, PullKit } from "./pull-kit.ts";

test("blocks arrive in one request, each with its own arrival", async () => {
  await using kit = new PullKit();
  const kinds = await kit.kinds(kit.pull([1, 2, 3]));
  expect(kinds).toEqual(["ok", "ok", "ok"]);
  expect(kit.host("a").itemsAsked).toEqual([3]);
  expect(kit.blocks.used).toBe(3);
  expect(kit.puller.stats.outcomes.ok).toBe(3);
});

test("concurrent fetches of one block share one request", async () => {
  await using kit = new PullKit();
  const calls = Array.from({ length: 50 }, () => kit.pull([1]));
  const outcomes = await kit.settle(Promise.all(calls));
  expect(kit.host("a").items).toBe(1);
  expect(kit.puller.stats.sharedPulls).toBe(49);
  const arrivals = outcomes.flat().flatMap((one) => (one.kind === "ok" ? [one.arrival] : []));
  expect(arrivals).toHaveLength(50);
  for (const [index, arrival] of arrivals.entries()) {
    expect(kit.blocks.released).toBe(0);
    arrival.release(index === 7);
  }
  expect(kit.blocks.released).toBe(1);
  expect(kit.blocks.used).toBe(1);
});

test("one whose peer does not have it goes to the next, and that is remembered", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.host("a").behave = () => ({ answer: "absent", afterMs: 1 });
  expect(await kit.kinds(kit.pull([1]))).toEqual(["ok"]);
  expect(kit.wrong).toEqual(["a"]);
  const [trace] = kit.puller.traces(block(1).digest.toHex());
  expect(trace?.outcome).toBe("ok");
  expect(trace?.steps.flatMap(({ peer }) => (peer ? [String(peer)] : []))).toEqual([
    "a",
    "a",
    "b",
    "b",
  ]);
});

test("a long list is started in slices that yield to the event loop", async () => {
  await using kit = new PullKit();
  const pulling = kit.pull(Array.from({ length: 900 }, (_, i) => i));
  expect(kit.puller.stats.inFlightBytes).toBe(256_000);
  expect(new Set(await kit.kinds(pulling))).toEqual(new Set(["ok"]));
});
