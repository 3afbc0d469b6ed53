import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { decodeReceipt, encodeReceipt, JSON_TYPE, MSGPACK_TYPE } from "../../src/control/index.ts";
import { countOutcomes, systemClock, yieldToLoop } from "../../src/core/index.ts";
import { openRetentionLedger } from "../../src/store/index/index.ts";
import type { HeldBlock } from "../../src/store/index.ts";
import { withTempDir } from "../support/index.ts";
import { FakeLedger, LIMITS, PlaneKit } from "./plane-kit.ts";

const PIN = { type: "Cache", block_hashes: [1, 2], pin: true };

describe("a repeated command", () => {
  test("changes nothing and gets the same receipt", async () => {
    const kit = new PlaneKit();
    const first = await kit.send({ ...PIN, id: "c" });
    const again = await kit.send({ ...PIN, id: "c" });
    expect(again).toEqual({ ...first, duplicate: true });
    expect(kit.lifecycle.pins.get("tester/1")).toBe(1);
    expect(kit.plane.stats().duplicates).toBe(1);
    await kit.send({ ...PIN, id: "c", issuer: "other" });
    expect(kit.lifecycle.pins.get("other/1")).toBe(1);
  });

  test("must be the same: a different command with a used id is refused", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    const own = { ...PIN, id: "c", owner: "team", ttl_seconds: 60 };
    await kit.send(own);
    const others = [
      { ...own, block_hashes: [1, 3] },
      { ...own, block_hashes: [2, 1] },
      { ...own, block_hashes: [1] },
      { ...own, block_hashes: [1, "02".repeat(32)] },
      { ...own, pin: false },
      { ...own, ttl_seconds: 61 },
      { ...own, owner: "others" },
      { type: "Prune", after_block_hash: 1, id: "c" },
      { type: "Prune", after_block_hash: 1, id: "c", after_block_key: "02".repeat(32) },
    ];
    const after = async (planes: PlaneKit) => {
      for (const other of others) expect(await planes.word(other)).toBe("id_reused");
      // In any encoding, at any time, and from a restarted router.
      const again = { ...own, block_hashes: ["1", 2n], epoch: 2, seq: 3, not_after: 2 ** 40 };
      expect(await planes.send(again)).toMatchObject({ status: "ok", duplicate: true });
    };
    await after(kit);
    expect(kit.lifecycle.pins.get("team/1")).toBe(1);
    expect(kit.plane.stats().refused).toEqual({ id_reused: others.length });
    const reopened = new PlaneKit(ledger.reopened());
    await after(reopened);
    expect(reopened.lifecycle.calls).toEqual([]);
    expect(reopened.plane.find("c", "tester")).not.toHaveProperty("digest");
  });

  test("must be the same, also while the first one executes", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    const sent = kit.send({ ...PIN, id: "c" });
    expect(await kit.word({ ...PIN, id: "c", pin: false })).toBe("id_reused");
    kit.lifecycle.held[0]!.finish();
    expect(await sent).toMatchObject({ status: "ok" });
  });

  test("is a new command if another account sends it", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    const [ann, eve] = [{ account: "ann" }, { account: "eve" }];
    const pin = { ...PIN, issuer: "router", id: "c" };
    expect(await kit.word({ ...pin, pin: false, epoch: 2n ** 40n }, eve)).toBe("ok");
    expect(await kit.send({ ...pin, epoch: 1 }, ann)).not.toHaveProperty("duplicate");
    expect(await kit.send({ ...pin, epoch: 1 }, ann)).toHaveProperty("duplicate");
    // Over NATS the sender is unknown: an issuer is one scope.
    expect(await kit.send({ ...pin, epoch: 1 })).not.toHaveProperty("duplicate");
    expect(await kit.word({ ...PIN, issuer: "router", epoch: 1 }, eve)).toBe("fenced");
    const after = new PlaneKit(ledger.reopened());
    expect(await after.word({ ...PIN, issuer: "router", epoch: 1 }, eve)).toBe("fenced");
    expect(await after.send({ ...pin, epoch: 1 }, ann)).toHaveProperty("duplicate");
    expect(await after.send({ ...pin, epoch: 1 })).toHaveProperty("duplicate");
    for (const { plane } of [kit, after]) {
      expect(plane.find("c", "router", "eve")?.type).toBe("Cache");
      const found = [plane.find("c", "router", "eve"), plane.find("c", "router", "ann")];
      expect(found[0]).not.toEqual(found[1]!);
      expect(found.map((receipt) => receipt?.issuer)).toEqual(["router", "router"]);
      expect(plane.find("c", "router", "bob")).not.toBeNull();
      expect(plane.find("c", "somebody", "ann")).toBeNull();
    }
  });

  test("waits while the first one executes", async () => {
    const kit = new PlaneKit();
    kit.lifecycle.isHolding = true;
    const sent = Array.from({ length: 5 }, () => kit.send({ ...PIN, id: "c" }));
    await yieldToLoop();
    expect(kit.lifecycle.held).toHaveLength(1);
    kit.lifecycle.held[0]!.finish();
    const receipts = await Promise.all(sent);
    expect(receipts.map(({ status, duplicate }) => [status, duplicate])).toEqual([
      ["ok", undefined],
      ...new Array(4).fill(["ok", true]),
    ]);
  });

  test("is carried out after a refusal", async () => {
    const kit = new PlaneKit();
    kit.limits = { ...LIMITS, commandsBurst: 1, commandsPerSecond: 1 };
    await kit.send({ ...PIN, id: "a" });
    expect(await kit.word({ ...PIN, id: "b", seq: 4 })).toBe("rate_limited");
    kit.clock.advance(1_000);
    expect(await kit.word({ ...PIN, id: "b", seq: 4 })).toBe("ok");
  });

  test(
    "is carried out after a failure without a change, and not after one with a " + "change",
    async () => {
      const kit = new PlaneKit();
      kit.lifecycle.isHolding = true;
      const failed = kit.send({ ...PIN, id: "a", seq: 1 });
      kit.lifecycle.held[0]!.fail(new Error("early"));
      expect((await failed).reason).toBe("internal: early");
      const late = kit.send({ ...PIN, id: "a", seq: 1 });
      kit.lifecycle.held[1]!.apply();
      kit.lifecycle.held[1]!.fail(new Error("late"));
      expect((await late).reason).toBe("internal: late");
      const again = await kit.send({ ...PIN, id: "a", seq: 1 });
      expect(again).toMatchObject({ reason: "internal: late", duplicate: true });
      expect(kit.lifecycle.pins.get("tester/1")).toBe(1);
    },
  );

  test("gets the counts long afterwards", async () => {
    const kit = new PlaneKit();
    const big = { type: "Cache", block_hashes: new Array(1_000).fill(1), pin: true };
    await kit.send({ ...big, id: "c0" });
    for (let i = 1; i < 250; i++) await kit.send({ ...big, id: `c${i}` });
    const old = await kit.send({ ...big, id: "c0" });
    expect(old).toMatchObject({ duplicate: true, counts: { done: 1_000 } });
    expect(old.blocks.length + old.blocks_left_out!).toBe(1_000);
    const young = await kit.send({ ...big, id: "c249" });
    expect(young.blocks).toHaveLength(1_000);
  });
});

describe("epoch and number", () => {
  test("a replaced router is fenced, a late command is stale", async () => {
    const kit = new PlaneKit();
    const word = (epoch: number | null, seq: number | null) => kit.word({ ...PIN, epoch, seq });
    expect(await word(1, 5)).toBe("ok");
    expect(await word(1, 5)).toBe("stale");
    expect(await word(1, 4)).toBe("stale");
    expect(await word(1, 6)).toBe("ok");
    expect(await word(2, 1)).toBe("ok");
    expect(await word(1, 7)).toBe("fenced");
    expect(await word(null, 2)).toBe("ok");
    expect(await word(null, 2)).toBe("stale");
    expect(await word(2, null)).toBe("ok");
    expect(await word(null, null)).toBe("ok");
    expect(await kit.word({ ...PIN, issuer: "other", epoch: 1, seq: 1 })).toBe("ok");
  });

  test("agree with a literal model", async () => {
    const step = fc.record({
      issuer: fc.constantFrom("a", "b"),
      epoch: fc.option(fc.nat(3)),
      seq: fc.option(fc.nat(5)),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 40 }), async (steps) => {
        const kit = new PlaneKit();
        const epochs: Record<string, number> = {};
        const seqs: Record<string, number> = {};
        for (const { issuer, epoch, seq } of steps) {
          const known = epochs[issuer] ?? 0;
          let expected = "ok";
          if (epoch !== null && epoch < known) expected = "fenced";
          else if (seq !== null && (epoch ?? known) === known && seq <= (seqs[issuer] ?? -1)) {
            expected = "stale";
          } else {
            if ((epoch ?? known) > known) seqs[issuer] = -1;
            epochs[issuer] = epoch ?? known;
            if (seq !== null) seqs[issuer] = seq;
          }
          expect(await kit.word({ ...PIN, issuer, epoch, seq })).toBe(expected);
        }
      }),
      { seed: 82, numRuns: 300 },
    );
  });
});

describe("across a restart", () => {
  test("pin and command are written in one turn, before any commit", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    kit.lifecycle.isHolding = true;
    const sent = kit.send({ ...PIN, id: "c", epoch: 3, seq: 9 });
    kit.lifecycle.onChange = () => ledger.putHold({ id: 1 } as never);
    expect(ledger.pending).toEqual([]);
    kit.lifecycle.held[0]!.apply();
    expect(ledger.pending).toEqual(["hold 1", "issuer tester", "command tester c"]);
    expect(ledger.commits).toEqual([]);
    kit.lifecycle.held[0]!.finish();
    await sent;
  });

  test("an expected result is written once, with the change", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    kit.lifecycle.isHolding = true;
    kit.lifecycle.foresees = true;
    const sent = kit.send({ ...PIN, id: "c", seq: 9 });
    kit.lifecycle.held[0]!.apply();
    expect(ledger.pending).toEqual(["issuer tester", "command tester c"]);
    await ledger.commit();
    kit.lifecycle.held[0]!.finish();
    const receipt = await sent;
    expect(receipt).toMatchObject({ status: "ok", durable: true });
    expect([ledger.pending, ledger.commits]).toEqual([[], [{ durable: true }]]);
    const again = await new PlaneKit(ledger.reopened()).send({ ...PIN, id: "c", seq: 9 });
    expect({ ...again, elapsed_ms: 0 }).toEqual({ ...receipt, elapsed_ms: 0, duplicate: true });
  });

  test("an unexpected result is written as it occurred", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    kit.lifecycle.foresees = true;
    kit.lifecycle.disappoints = true;
    const receipt = await kit.send({ ...PIN, id: "c" });
    expect(receipt.durable).toBe(false);
    const again = await new PlaneKit(ledger.reopened()).send({ ...PIN, id: "c" });
    expect(again).toEqual({ ...receipt, duplicate: true });
  });

  test("an acknowledged command is known, with receipt and number", async () => {
    const ledger = new FakeLedger();
    const first = await new PlaneKit(ledger).send({ ...PIN, id: "c", epoch: 3, seq: 9 });
    const kit = new PlaneKit(ledger.reopened());
    expect(kit.plane.find("c", "tester")).toEqual(first);
    expect(await kit.send({ ...PIN, id: "c", epoch: 3, seq: 9 })).toEqual({
      ...first,
      duplicate: true,
    });
    expect(await kit.word({ ...PIN, epoch: 3, seq: 9 })).toBe("stale");
    expect(await kit.word({ ...PIN, epoch: 2 })).toBe("fenced");
    expect(await kit.word({ ...PIN, epoch: 3, seq: 10 })).toBe("ok");
    expect(kit.lifecycle.calls).toHaveLength(1);
  });

  test("an interrupted command says so and is not carried out twice", async () => {
    const ledger = new FakeLedger();
    const before = new PlaneKit(ledger);
    before.lifecycle.isHolding = true;
    void before.send({ ...PIN, id: "c" });
    before.lifecycle.held[0]!.apply();
    await ledger.commit();
    const kit = new PlaneKit(ledger.reopened());
    const again = await kit.send({ ...PIN, id: "c" });
    expect(again).toMatchObject({ status: "partial", duplicate: true, counts: { done: 2 } });
    expect(again.reason).toStartWith("interrupted: ");
    expect(kit.lifecycle.calls).toEqual([]);
  });

  test.each([
    { type: "Think", block_hashes: [1], transient: true },
    { type: "Think", block_hashes: [1], transient: false },
    { type: "RevokeLease", lease_id: "l" },
  ])("what brings about a state is carried out again where it was cut off: %j", async (command) => {
    const ledger = new FakeLedger();
    const before = new PlaneKit(ledger);
    before.lifecycle.isHolding = true;
    void before.send({ ...command, id: "c", seq: 5 });
    before.lifecycle.held[0]!.apply();
    await ledger.commit();
    const next = ledger.reopened();
    const kit = new PlaneKit(next);
    const again = await kit.send({ ...command, id: "c", seq: 5 });
    expect(again).toMatchObject({ status: "ok" });
    expect(again.duplicate).toBeUndefined();
    expect(await kit.send({ ...command, id: "c", seq: 5 })).toEqual({ ...again, duplicate: true });
    // Its time is known after a restart, as for any lease.
    const later = new PlaneKit(next.reopened());
    expect((await later.send({ ...command, id: "c" })).duplicate).toBe(true);
  });

  test("a hung ledger delays an answer and a stop by seconds at most", async () => {
    const ledger = new FakeLedger();
    const kit = new PlaneKit(ledger);
    ledger.isHanging = true;
    const sent = kit.send({ ...PIN, id: "c" });
    await yieldToLoop();
    expect(kit.plane.stats().running).toBe(1);
    kit.clock.advance(5_000);
    const receipt = await sent;
    expect(receipt).toMatchObject({ status: "ok", durable: false, counts: { done: 2 } });
    expect(kit.plane.find("c", "tester")).toEqual(receipt);
    expect(kit.plane.stats().running).toBe(0);
    // A command without an id has no pending write.
    expect(await kit.send(PIN)).toMatchObject({ status: "ok", durable: true });
  });

  test("a command without an effect may be repeated with its number", async () => {
    const ledger = new FakeLedger();
    const before = new PlaneKit(ledger);
    before.lifecycle.isHolding = true;
    void before.send({ ...PIN, id: "c", seq: 5 });
    void before.send({ ...PIN, id: "d", seq: 6 });
    before.lifecycle.held[0]!.apply();
    await ledger.commit();
    const kit = new PlaneKit(ledger.reopened());
    expect(await kit.word({ ...PIN, id: "d", seq: 6 })).toBe("ok");
  });

  test("a large receipt is stored trimmed", async () => {
    const ledger = new FakeLedger();
    const block_hashes = new Array(1_000).fill(-1);
    await new PlaneKit(ledger).send({ ...PIN, block_hashes, id: "c" });
    const row = ledger.committed.get("command tester c") as { receipt: string };
    expect(row.receipt.length).toBeLessThan(2_048);
    const kit = new PlaneKit(ledger.reopened());
    expect(kit.plane.find("c", null)).toMatchObject({
      counts: { done: 1_000 },
      blocks_left_out: 992,
    });
  });

  test("any mix of repetitions, failures and crashes counts every pin once", async () => {
    const step = fc.record({
      id: fc.nat(3),
      does: fc.constantFrom("send", "apply", "finish", "fail", "crash"),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        let ledger = new FakeLedger();
        let kit = new PlaneKit(ledger);
        kit.lifecycle.isHolding = true;
        /** Pins that survive a crash: one per committed row. */
        const put = () => ledger.putHold({ id: ++holds } as never);
        let holds = 0;
        let survived = 0;
        kit.lifecycle.onChange = put;
        const sent = new Set<number>();
        for (const { id, does } of steps) {
          const operation = kit.lifecycle.held.at(-1);
          if (does === "send") {
            sent.add(id);
            void kit.send({ type: "Cache", block_hashes: [id], pin: true, id: `c${id}` });
          } else if (does === "apply") operation?.apply();
          else if (does === "finish") operation?.finish();
          else if (does === "fail") operation?.fail(new Error("x"));
          else {
            await yieldToLoop();
            survived += [...ledger.committed.keys()].filter((key) => key.startsWith("hold")).length;
            const reopened = ledger.reopened();
            for (const [key, row] of ledger.committed) {
              if (!key.startsWith("hold")) reopened.committed.set(key, row);
            }
            ledger = reopened;
            kit = new PlaneKit(ledger);
            kit.lifecycle.isHolding = true;
            kit.lifecycle.onChange = put;
          }
          await yieldToLoop();
        }
        await ledger.commit();
        survived += [...ledger.committed.keys()].filter((key) => key.startsWith("hold")).length;
        expect(survived).toBeLessThanOrEqual(sent.size);
      }),
      { seed: 83, numRuns: 200 },
    );
  });
});

const MIXED_PIN = { type: "Cache", block_hashes: [-1n, "zz"], pin: true };
const MACHINE = "0123456789abcdef0123456789abcdef";

async function opened(folder: string, incarnation: bigint) {
  const owner = { worker: "w1", machine: MACHINE };
  return openRetentionLedger({ folder, incarnation, owner, clock: systemClock });
}

describe("commands in a ledger on disk", () => {
  test("are known after a restart, with their receipts and numbers", async () => {
    await withTempDir(async (folder) => {
      const command = { ...MIXED_PIN, id: "c-1", issuer: "router é", epoch: 2n ** 40n };
      const before = await opened(folder, 1n);
      const kit = new PlaneKit(before);
      const first = await kit.send({ ...command, seq: 2n ** 40n - 1n });
      // Committed before the answer: nothing remains to be written at the end.
      expect(before.state.pending).toBe(0);
      await before[Symbol.asyncDispose]();

      const after = await opened(folder, 2n);
      const restarted = new PlaneKit(after);
      const again = await restarted.send({ ...command, seq: 2n ** 40n - 1n });
      expect(again).toEqual({ ...first, duplicate: true });
      expect(again.blocks[0]!.block).toBe(-1);
      expect(await restarted.word({ ...command, id: "c-2", seq: 2n ** 40n - 1n })).toBe("stale");
      expect(await restarted.word({ ...command, id: "c-2", seq: 2n ** 40n })).toBe("partial");
      expect(await restarted.word({ ...command, id: "c-3", epoch: 7 })).toBe("fenced");
      expect(restarted.lifecycle.calls).toHaveLength(1);
      await after[Symbol.asyncDispose]();
    });
  });
});

test("a revocation lists the blocks of the lease, the first 1,000", async () => {
  const kit = new PlaneKit();
  const by = [{ kind: "pin", owner: "o" }] as const;
  const results: HeldBlock[] = Array.from({ length: 1_200 }, (_, at) => ({
    ...(at === 1 ? { outcome: "held", by } : { outcome: "done" }),
    ...{ digest: `${at}`.padStart(64, "0"), layer: at },
  }));
  kit.lifecycle.revokeLease = async () => ({
    ...{ results, counts: countOutcomes(results), held: [], bytes: 9, durable: true },
    ...{ figures: null, ttlMs: null },
  });
  const receipt = await kit.send({ type: "RevokeLease", lease_id: "l" });
  expect(receipt).toMatchObject({ status: "partial", counts: { done: 1_199, held: 1 } });
  expect(receipt.blocks).toHaveLength(1_000);
  expect(receipt.blocks_left_out).toBe(200);
  for (const type of [JSON_TYPE, MSGPACK_TYPE] as const) {
    const read = decodeReceipt(encodeReceipt(receipt, type), type)!;
    expect(read.blocks.slice(0, 3)).toEqual([
      { block: "0".repeat(64), outcome: "done", layer: 0 },
      { block: `${"0".repeat(63)}1`, outcome: "held", layer: 1, by: [...by] },
      { block: `${"0".repeat(63)}2`, outcome: "done", layer: 2 },
    ]);
  }
  // For an unknown lease no block is listed.
  kit.lifecycle.revokeLease = async () => ({
    ...{ results: [{ outcome: "missing" }], counts: countOutcomes([{ outcome: "missing" }]) },
    ...{ held: [], bytes: 0, durable: false, figures: null, ttlMs: null },
  });
  const missing = await kit.send({ type: "RevokeLease", lease_id: "l" });
  expect(missing).toMatchObject({ status: "partial", blocks: [], counts: { missing: 1 } });
});
