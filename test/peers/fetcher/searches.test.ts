import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import type { Locator } from "../../../src/peers/index.ts";
import { block, PullKit } from "./pull-kit.ts";

class ScriptedLocator implements Locator {
  readonly asked: number[] = [];
  answer: readonly string[] | null = ["c"];

  async locate(_namespace: Uint8Array, keys: readonly Uint8Array[]) {
    this.asked.push(keys.length);
    const { answer } = this;
    return answer === null ? null : keys.map(() => answer as WorkerId[]);
  }
}

test("sources are asked first, then the router's answer, then summaries", async () => {
  const locator = new ScriptedLocator();
  await using kit = new PullKit({ hosts: ["a", "b", "c"], locator });
  kit.holders = () => ["b"];
  kit.host("a").unreachable.add("stream");
  kit.host("c").behave = () => ({ answer: "absent", afterMs: 1 });
  expect(await kit.kinds(kit.pull([1, 2], { sources: ["a" as WorkerId] }))).toEqual(["ok", "ok"]);
  expect(locator.asked).toEqual([2]);
  expect(kit.wrong).toEqual(["c", "c"]);
  expect(kit.host("b").items).toBe(2);
});

test("a router that does not answer is left alone for a while", async () => {
  const locator = new ScriptedLocator();
  locator.answer = null;
  await using kit = new PullKit({ locator });
  await kit.kinds(kit.pull([1], { priority: "warm" }));
  await kit.kinds(kit.pull([2]));
  expect(locator.asked).toEqual([1]);
  await kit.clock.advanceAsync(5_001);
  await kit.kinds(kit.pull([3], { priority: "warm" }));
  expect(locator.asked).toEqual([1, 1]);
});

test("a router that an engine could not wait for is still asked by others", async () => {
  const locator = new ScriptedLocator();
  locator.answer = null;
  await using kit = new PullKit({ hosts: ["a", "c"], locator });
  kit.holders = () => [];
  expect(await kit.kinds(kit.pull([1]))).toEqual(["miss"]);
  expect(await kit.kinds(kit.pull([2], { priority: "warm", deadlineMs: 300 }))).toEqual(["ok"]);
  locator.answer = ["c"];
  expect(await kit.kinds(kit.pull([3]))).toEqual(["ok"]);
  expect(locator.asked).toEqual([1, 1, 1]);
});

test("a command asks peers about unknown blocks, in one round; engines do not", async () => {
  await using kit = new PullKit({ hosts: ["a", "b", "c"] });
  kit.holders = () => [];
  kit.host("a").holds = () => false;
  kit.host("b").hasHangs = true;
  expect(await kit.kinds(kit.pull([1, 2]))).toEqual(["miss", "miss"]);
  const began = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([1, 2], { priority: "warm" }))).toEqual(["ok", "ok"]);
  expect(kit.clock.monotonicMs() - began).toBeLessThan(300);
  expect(kit.host("a").hasCalls).toBe(1);
  expect(kit.host("c")).toMatchObject({ hasCalls: 1, items: 2 });
});

test("names are resolved at the sources, and elsewhere only if they do not know", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.host("a").holds = (digest) => digest[0] === 1;
  const names = [1, 2].map((byte) => new Uint8Array(8).fill(byte));
  const options = { deadlineMs: 1_000, signal: new AbortController().signal };
  const found = await kit.settle(kit.puller.find(names, ["a" as WorkerId], options));
  expect(found.map((some) => some.map(({ worker }) => String(worker)))).toEqual([["a"], ["b"]]);
});

test("a short query uses the fetcher's own connection", async () => {
  await using kit = new PullKit();
  const options = { deadlineMs: 1_000, signal: new AbortController().signal };
  const request = { op: "has" as const, namespace: new Uint8Array(32), blocks: [block(1)] };
  const answer = await kit.settle(kit.puller.ask("a" as WorkerId, request, options));
  expect(answer).toMatchObject({ op: "has", blocks: [{ bytes: 1_000 }] });
  expect(await kit.puller.ask("nobody" as WorkerId, request, options)).toBeNull();
  expect(kit.host("a").dials).toBe(1);
  await kit.kinds(kit.pull([1]));
  expect(kit.host("a").dials).toBe(1);
});
