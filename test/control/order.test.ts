import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { Receipt } from "../../src/control/index.ts";
import { yieldToLoop } from "../../src/core/index.ts";
import { PlaneKit } from "./plane-kit.ts";

const PIN = { type: "Cache", block_hashes: [1, 2], pin: true };
const UNPIN = { type: "Cache", block_hashes: [1, 2], pin: false };

/** Calls recorded by the fake lifecycle. */
function nameOf(command: { type: string; pin?: boolean; lease_id?: string }): string {
  const { type, pin, lease_id } = command;
  if (type === "Cache") return pin ? "pin tester ttl=null" : "unpin tester";
  if (type === "Think") return "purge";
  if (type === "Pause") return `pause ${lease_id} tester ttl=null`;
  if (type === "RenewLease") return `renew ${lease_id} 3000`;
  return type === "RevokeLease" ? `revoke ${lease_id}` : "prune";
}

describe("order", () => {
  test("a command waits until the previous one has changed its pins, not longer", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    const pinned = kit.send(PIN);
    const unpinned = kit.send(UNPIN);
    const other = kit.send({ ...PIN, issuer: "other" });
    await yieldToLoop();
    expect(kit.lifecycle.calls).toEqual(["pin tester ttl=null", "pin other ttl=null"]);
    kit.lifecycle.held[0]!.apply();
    await yieldToLoop();
    expect(kit.lifecycle.calls.at(-1)).toBe("unpin tester");
    kit.lifecycle.held[2]!.finish();
    expect(await unpinned).toMatchObject({ counts: { done: 2 } });
    for (const held of kit.lifecycle.held) held.finish();
    expect(await pinned).toMatchObject({ counts: { done: 2 } });
    await other;
    expect(kit.lifecycle.pins.get("tester/1")).toBe(0);
  });

  const PAUSE = { type: "Pause", block_hashes: [1], lease_id: "l" };
  const PURGE = { type: "Think", block_hashes: [9], transient: false };

  test.each([
    [{ type: "RenewLease", lease_id: "l", new_ttl_seconds: 3 }, true],
    [{ type: "RenewLease", lease_id: "other", new_ttl_seconds: 3 }, false],
    [{ type: "RevokeLease", lease_id: "l" }, true],
    [{ type: "RevokeLease", lease_id: "other" }, false],
    [{ ...PAUSE, lease_id: "other" }, false],
    [PIN, false],
    [UNPIN, false],
    [PURGE, true],
    [{ type: "Prune", after_block_hash: 1 }, true],
    [{ type: "Flush" }, true],
    [{ type: "Warm", block_keys: ["1"] }, true],
  ])("behind a pause that writes %j waits: %p", async (command, waits) => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    void kit.send(PAUSE);
    void kit.send(command);
    await yieldToLoop();
    expect(kit.lifecycle.calls).toHaveLength(waits ? 1 : 2);
    kit.lifecycle.held[0]!.apply();
    await yieldToLoop();
    expect(kit.lifecycle.calls).toHaveLength(2);
    for (const held of kit.lifecycle.held) held.finish();
  });

  test.each([
    { type: "Prune", after_block_hash: 1 },
    { type: "Flush" },
    { type: "Warm", block_keys: ["1"] },
    { type: "RevokeLease", lease_id: "l" },
  ])("%j does not overtake a pin that waits", async (command) => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    for (const one of [PURGE, PIN, command]) void kit.send(one);
    await yieldToLoop();
    expect(kit.lifecycle.calls).toEqual(["purge"]);
    kit.lifecycle.held[0]!.apply();
    await yieldToLoop();
    expect(kit.lifecycle.calls).toEqual(["purge", "pin tester ttl=null"]);
    kit.lifecycle.held[1]!.apply();
    await yieldToLoop();
    expect(kit.lifecycle.calls).toHaveLength(3);
    for (const held of kit.lifecycle.held) held.finish();
  });

  test("any mix of commands changes pins in order where it matters, and all end", async () => {
    const COMMANDS = [PIN, UNPIN, PURGE, PAUSE, { ...PAUSE, lease_id: "m" }].concat([
      { type: "RenewLease", lease_id: "l", new_ttl_seconds: 3 },
      { type: "RevokeLease", lease_id: "m" },
      { type: "Prune", after_block_hash: 1 },
    ] as never[]);
    const isOnBlocks = (type: string) => type === "Cache" || type === "Think";
    const mustWait = (a: { type: string; lease_id?: string }, b: typeof a) =>
      a.type !== "Prune" &&
      ((isOnBlocks(a.type) && b.type !== "RenewLease") ||
        (a.lease_id !== undefined && a.lease_id === b.lease_id) ||
        b.type === "Think" ||
        b.type === "Prune");
    const step = fc.record({ send: fc.nat(COMMANDS.length - 1), change: fc.option(fc.nat(9)) });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 20 }), async (steps) => {
        const kit = new PlaneKit();
        kit.lifecycle.isHolding = true;
        const sent: { command: (typeof COMMANDS)[number]; calledAt: number; changedAt: number }[] =
          [];
        let time = 0;
        /** The first uncalled command of a name: they are in one lane. */
        const look = async () => {
          await yieldToLoop();
          for (const one of kit.lifecycle.held.slice(known)) {
            const of = sent.find((s) => s.calledAt === 0 && one.name === nameOf(s.command))!;
            of.calledAt = ++time;
            inCall.push(of);
          }
          known = kit.lifecycle.held.length;
        };
        let known = 0;
        const inCall: typeof sent = [];
        const change = (at: number) => {
          const open = inCall.filter((one) => one.changedAt === 0);
          if (open.length === 0) return false;
          const one = open[at % open.length]!;
          one.changedAt = ++time;
          kit.lifecycle.held[inCall.indexOf(one)]!.apply();
          return true;
        };
        for (const { send, change: at } of steps) {
          sent.push({ command: COMMANDS[send]!, calledAt: 0, changedAt: 0 });
          void kit.send(COMMANDS[send]!);
          await look();
          if (at !== null) change(at);
          await look();
        }
        while (change(0)) await look();
        expect(sent.filter(({ calledAt }) => calledAt === 0)).toEqual([]);
        for (const [at, a] of sent.entries()) {
          for (const b of sent.slice(at + 1)) {
            if (mustWait(a.command, b.command)) expect(b.calledAt).toBeGreaterThan(a.changedAt);
          }
        }
        for (const held of kit.lifecycle.held) held.finish();
      }),
      { seed: 86, numRuns: 200 },
    );
  });

  test("a failed command releases the next", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    const [first, second] = [kit.send(PIN), kit.send(UNPIN)];
    kit.lifecycle.held[0]!.fail(new Error("boom"));
    expect((await first).reason).toBe("internal: boom");
    await yieldToLoop();
    kit.lifecycle.held[1]!.finish();
    expect(await second).toMatchObject({ counts: { already: 2 } });
    expect(kit.lines.join()).toContain("boom");
  });

  test("long commands delay no others, and report progress", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    const told: Receipt[] = [];
    const warm = kit.send({ type: "Warm", id: "w", block_keys: ["1"] }, {}, (r) => told.push(r));
    const [operation] = kit.lifecycle.held;
    for (let i = 1; i <= 25; i++) {
      kit.clock.advance(100);
      operation!.progress(i);
    }
    expect(told.map(({ progress }) => progress!.done_blocks)).toEqual([10, 20]);
    expect(kit.plane.find("w", "tester")).toMatchObject({
      status: "running",
      progress: { done_blocks: 25, total_blocks: 100, bytes: 25 * 4096 },
    });
    kit.lifecycle.isHolding = false;
    expect(await kit.word(PIN)).toBe("ok");
    operation!.finish();
    expect(await warm).toMatchObject({ status: "ok", elapsed_ms: 2_500 });
    expect(kit.plane.find("w", null)).toMatchObject({ status: "ok" });
    expect(kit.plane.find("x", null)).toBeNull();
  });

  test("a stop ends long commands, accepts no more, and waits for the executing ones", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    const warm = kit.send({ type: "Warm", block_keys: ["1"] });
    let isStopped = false;
    const stopped = kit.plane[Symbol.asyncDispose]().then(() => {
      isStopped = true;
    });
    await yieldToLoop();
    expect(kit.lifecycle.signals[0]!.aborted).toBe(true);
    expect(await kit.word(PIN)).toBe("busy");
    expect(isStopped).toBe(false);
    kit.lifecycle.held[0]!.finish();
    await Promise.all([warm, stopped]);
  });
});

test("a stop does not wait forever for hung commands", async () => {
  const kit = new PlaneKit();
  kit.lifecycle.isHolding = true;
  void kit.send({ type: "Pause", block_hashes: [1], lease_id: "l" });
  const stopped = kit.plane[Symbol.asyncDispose]();
  await yieldToLoop();
  kit.clock.advance(12_000);
  await stopped;
  expect(kit.lines.join()).toContain("still executing at shutdown");
  expect(kit.clock.pending).toBe(0);
});
