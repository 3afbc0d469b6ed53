import { expect, test } from "bun:test";
import { formatSummary, ReplayTally, summarise } from "../../../src/workload/replay/index.ts";

const ABOUT = { trace: "t", blockBytes: 4096, seconds: 12.3456, clients: 2 };

function tallied() {
  const tally = new ReplayTally(512);
  Object.assign(tally, {
    requests: 1_000,
    blocksAsked: 3,
    blocksHit: 1,
    tokensAsked: 1_536,
    tokensHit: 512,
    getBytes: 3_000,
    getNs: 1_000,
    putBytes: 2_000,
    putNs: 4_000,
  });
  return tally;
}

test("rates are 10^9 bytes a second, ratios have four digits", () => {
  expect(summarise(tallied(), ABOUT)).toMatchObject({
    hit_ratio: 0.3333,
    get_gbps: 3,
    put_gbps: 0.5,
    seconds: 12.346,
  });
});

test("nothing measured is zero, not a division", () => {
  expect(summarise(new ReplayTally(512), ABOUT)).toMatchObject({
    hit_ratio: 0,
    get_gbps: 0,
    put_gbps: 0,
    acquire_p50_us: 0,
    acquire_p99_us: 0,
  });
});

test("quantiles are those of all durations, also when there are more than are kept", () => {
  const tally = new ReplayTally(512);
  for (let i = 0; i < 300_000; i++) tally.acquireNs.add(i * 1_000);
  const { acquire_p50_us, acquire_p99_us } = summarise(tally, ABOUT);
  expect(Math.abs(acquire_p50_us - 150_000)).toBeLessThan(1_500);
  expect(Math.abs(acquire_p99_us - 297_000)).toBeLessThan(1_500);
});

test("the table lists hits, speed and savings", () => {
  const text = formatSummary(summarise(tallied(), ABOUT), 256);
  expect(text).toContain("requests");
  expect(text).toContain("1 (33.33 %)");
  expect(text).toMatch(/wrong bytes +0/);
  expect(text).toContain("512 of 1,536 tokens (33.33 %)");
  // 512 tokens at 256 a second.
  expect(text).toContain("2.0 s of GPU time");
});
