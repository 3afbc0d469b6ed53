import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { block, PullKit } from "./pull-kit.ts";

test("a request whose deadline is shorter than a peer needs does not count against the peer", async () => {
  await using kit = new PullKit();
  const signal = new AbortController().signal;
  const request = { op: "has" as const, namespace: new Uint8Array(32), blocks: [block(1)] };
  const ask = (deadlineMs: number) =>
    kit.settle(kit.puller.ask("a" as WorkerId, request, { deadlineMs, signal }));
  expect(await ask(1_000)).not.toBeNull();
  kit.host("a").hasHangs = true;
  expect(await ask(20)).toBeNull();
  expect(kit.events).toEqual([]);
  expect(kit.puller.peers()).toMatchObject([{ state: "linked", failures: 0 }]);
  expect(await ask(10_000)).toBeNull();
  expect(kit.kindsOfEvents()).toEqual(["transport_down", "breaker_opened"]);
});

test("a fetch ends here at its deadline, before its transport ends it", async () => {
  await using kit = new PullKit({ limits: { mirrorPulls: false } });
  kit.host("a").behave = () => ({ answer: "hang", afterMs: 0 });
  expect(await kit.kinds(kit.pull([1], { deadlineMs: 40 }))).toEqual(["late"]);
  expect(kit.host("a").deadlines[0]).toBeGreaterThan(100);
  expect(kit.events).toEqual([]);
  expect(kit.puller.peers()).toMatchObject([{ state: "linked", failures: 0 }]);
});

test("an engine that joins a background copy raises its priority", async () => {
  await using kit = new PullKit({ limits: { itemsMax: 1 } });
  await kit.kinds(kit.pull([100]));
  kit.host("a").behave = () => ({ answer: "came", afterMs: 200 });
  const blocks = Array.from({ length: 20 }, (_, i) => i);
  const copies = kit.pull(blocks, { priority: "mirror" });
  await kit.clock.advanceAsync(10);
  const began = kit.clock.monotonicMs();
  expect(await kit.kinds(kit.pull([19]))).toEqual(["ok"]);
  expect(kit.clock.monotonicMs() - began).toBeLessThan(250);
  expect(new Set(await kit.kinds(copies))).toEqual(new Set(["ok"]));
});
