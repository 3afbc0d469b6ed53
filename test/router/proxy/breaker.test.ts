import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { DownWorkers, REQUESTS_MAX } from "../../../src/router/proxy/index.ts";
import { describeNative, ManualClock, waitFor } from "../../support/index.ts";
import { POLITE } from "./mock-engine.ts";
import { RawEngine } from "./raw-engine.ts";
import { MODEL, Rig } from "./rig.ts";

const CHAT = "/v1/chat/completions";
const ask = (content: string) => {
  return { model: MODEL, messages: [{ role: "user", content }], max_tokens: 3 };
};
const refuses = { status: 500, body: { error: "CUDA error" } };
const W = "w" as WorkerId;

/** Statuses of requests sent one after another. */
async function statuses(rig: Rig, contents: readonly string[]): Promise<number[]> {
  const all: number[] = [];
  for (const content of contents) all.push((await rig.post(CHAT, ask(content))).status);
  return all;
}

const different = (count: number) => Array.from({ length: count }, (_, i) => `Hello ${i}?`);

describeNative("a worker that passes health checks and fails requests", () => {
  test("server errors for different requests in a row exclude the worker", async () => {
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    const [bad, good] = [rig.engine("bad"), rig.engine("good")];
    bad.manners = { ...POLITE, refuses };
    const got = await statuses(rig, different(4 * REQUESTS_MAX));
    // If the loop takes longer than a second, one later request tries the worker again.
    expect(got.filter((status) => status === 500).length).toBe(bad.seen.length);
    expect(bad.seen.length).toBeLessThan(2 * REQUESTS_MAX);
    expect(good.seen.length).toBeGreaterThan(2 * REQUESTS_MAX);
    bad.manners = POLITE;
    const before = bad.seen.length;
    await waitFor(async () => {
      await (await rig.post(CHAT, ask("again"))).text();
      return bad.seen.length > before + 1;
    });
  });

  test("broken connections exclude the worker without failing a client", async () => {
    using bad = new RawEngine((socket) => void socket.terminate());
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    rig.worker("bad", bad.url);
    const good = rig.engine("good");
    const got = await statuses(rig, different(4 * REQUESTS_MAX));
    expect(new Set(got)).toEqual(new Set([200]));
    expect(good.seen).toHaveLength(4 * REQUESTS_MAX);
    expect(bad.requests).toBeLessThan(2 * REQUESTS_MAX);
  });

  test("repeated failures of one request do not exclude the worker", async () => {
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    const [bad, good] = [rig.engine("bad"), rig.engine("good")];
    bad.manners = { ...POLITE, refuses };
    const poison = Array.from({ length: 4 * REQUESTS_MAX }, () => "poison");
    await statuses(rig, poison);
    expect(bad.seen).toHaveLength(2 * REQUESTS_MAX);
    expect(good.seen).toHaveLength(2 * REQUESTS_MAX);
  });
});

test("one request tries a worker after the pause, and a failure doubles the pause", () => {
  const clock = new ManualClock();
  const down = new DownWorkers(clock);
  for (let i = 1; i < REQUESTS_MAX; i++) down.broke(W, BigInt(i));
  expect(down.now()).toEqual([]);
  down.broke(W, 0n);
  expect(down.now()).toEqual([W]);
  clock.advance(1_000);
  expect(down.now()).toEqual([]);
  down.tried(W);
  expect(down.now()).toEqual([W]);
  down.broke(W, 99n);
  clock.advance(1_999);
  expect(down.now()).toEqual([W]);
  clock.advance(1);
  down.tried(W);
  down.worked(W);
  down.ended(W, 1n, "done", 200);
  expect(down.now()).toEqual([]);
  down.broke(W, 1n);
  expect(down.now()).toEqual([]);
});
