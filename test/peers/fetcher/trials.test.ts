import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { PullKit } from "./pull-kit.ts";

const HANG = () => ({ answer: "hang", afterMs: 0 }) as const;
const CAME = () => ({ answer: "came", afterMs: 1 }) as const;

async function afterCooldown(kit: PullKit): Promise<void> {
  kit.host("a").unreachable.add("stream");
  await kit.kinds(kit.pull([1], { sources: ["a" as WorkerId] }));
  kit.host("a").unreachable.clear();
  await kit.clock.advanceAsync(1_001);
}

test("a trial that waited in vain in the queue lets the next one run", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"], limits: { bytesMax: 1_000 } });
  kit.holders = () => [];
  await afterCooldown(kit);
  kit.host("b").behave = HANG;
  const stop = new AbortController();
  const { signal } = stop;
  const hog = kit.kinds(kit.pull([2], { sources: ["b" as WorkerId], signal }));
  await kit.clock.advanceAsync(3, 1);
  const trial = kit.kinds(kit.pull([3], { sources: ["a" as WorkerId], signal }));
  await kit.clock.advanceAsync(3, 1);
  expect(kit.puller.stats.waiting).toBe(1);
  stop.abort();
  await Promise.all([hog, trial]);
  await kit.clock.advanceAsync(3, 1);
  expect(await kit.kinds(kit.pull([4], { sources: ["a" as WorkerId] }))).toEqual(["ok"]);
});

test("a transport's trial that its caller cancelled lets the next one run", async () => {
  await using kit = new PullKit({ transports: ["stream", "quic"] });
  await afterCooldown(kit);
  kit.host("a").behave = HANG;
  const stop = new AbortController();
  const trial = kit.kinds(kit.pull([2], { signal: stop.signal }));
  await kit.clock.advanceAsync(10, 1);
  stop.abort();
  await trial;
  await kit.clock.advanceAsync(3, 1);
  kit.host("a").behave = CAME;
  expect(await kit.kinds(kit.pull([3]))).toEqual(["ok"]);
  expect(kit.puller.stats.byTransport.stream.blocks).toBe(1);
});
