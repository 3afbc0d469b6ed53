import { expect, test } from "bun:test";
import { block, PullKit } from "./pull-kit.ts";

const range = (from: number, count: number) => Array.from({ length: count }, (_, i) => from + i);

test("other answers do not excuse a liar; each time it is left alone for longer", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.host("a").behave = () => ({ answer: "corrupt", afterMs: 1 });
  expect(new Set(await kit.kinds(kit.pull(range(0, 12))))).toEqual(new Set(["ok"]));
  const kinds = kit.kindsOfEvents();
  expect(kinds.filter((kind) => kind === "breaker_opened").length).toBe(1);
  expect(kinds).not.toContain("breaker_closed");
  for (const [round, ms] of [1_000, 2_000, 4_000].entries()) {
    await kit.clock.advanceAsync(ms, 50);
    for (const number of range(100 + round * 10, 4)) await kit.kinds(kit.pull([number]));
  }
  const cooldowns = kit.events.flatMap((event) =>
    event.kind === "breaker_opened" ? [event.cooldownMs] : [],
  );
  expect(cooldowns.length).toBe(4);
  for (const [times, ms] of cooldowns.entries()) {
    expect(ms).toBeGreaterThanOrEqual(750 * 2 ** times);
    expect(ms).toBeLessThanOrEqual(1_000 * 2 ** times);
  }
});

test("one damaged block does not stop fetches of others from the same host", async () => {
  await using kit = new PullKit({ hosts: ["a"] });
  const bad = Buffer.from(block(7).digest);
  kit.host("a").behave = (digest) => ({
    answer: bad.equals(digest) ? "corrupt" : "came",
    afterMs: 1,
  });
  for (let round = 0; round < 8; round++) {
    expect(await kit.kinds(kit.pull([7]))).toEqual(["miss"]);
    expect(await kit.kinds(kit.pull([round + 10]))).toEqual(["ok"]);
  }
  expect(kit.kindsOfEvents()).not.toContain("breaker_opened");
  expect(kit.kindsOfEvents().filter((kind) => kind === "peer_corrupt")).toHaveLength(1);
});

test("a peer that was good for a long time starts again from the short cooldown", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  kit.host("a").behave = () => ({ answer: "corrupt", afterMs: 1 });
  await kit.kinds(kit.pull(range(0, 3)));
  await kit.clock.advanceAsync(700_000, 10_000);
  kit.holders = () => ["a"];
  for (const number of range(10, 3)) await kit.kinds(kit.pull([number]));
  const cooldowns = kit.events.flatMap((event) =>
    event.kind === "breaker_opened" ? [event.cooldownMs] : [],
  );
  expect(cooldowns.length).toBe(2);
  expect(cooldowns[1]).toBeLessThanOrEqual(1_000);
});
