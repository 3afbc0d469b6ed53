import { describe, expect, test } from "bun:test";
import { createCommander } from "../../../src/app/index.ts";
import type { WorkerId } from "../../../src/core/index.ts";
import { kit, receiptOf } from "../../control/client/kit.ts";

const WORKER = "w1" as WorkerId;
const WARM = { type: "Warm", block_keys: ["1"], target_tier: "CPU_TIER1" } as const;

describe("a commander", () => {
  test("a commander sends as the router with an id and returns the receipt", async () => {
    await using here = await kit("router-1");
    const worker = await here.worker(WORKER);
    worker.behave = ({ command }, answer) => {
      const counts = { done: 2, already: 1, missing: 0, held: 0, deferred: 0, rejected: 0 };
      answer(receiptOf(WORKER, command, { counts, bytes: 77, ttl_seconds: 60 }));
    };
    const commander = createCommander({ client: here.client });
    const outcome = await here.settle(commander.send(WORKER, WARM));
    expect(outcome).toEqual({
      kind: "receipt",
      counts: { done: 2, already: 1, missing: 0, held: 0, deferred: 0, rejected: 0 },
      ...{ bytes: 77, ttlSeconds: 60 },
    });
    expect(worker.received).toEqual([
      {
        ...WARM,
        block_keys: ["1"],
        ...{ owner: "router", issuer: "router-1", id: expect.stringMatching(/^[0-9a-f]{32}$/) },
      },
    ]);
  });

  test("a command keeps its own owner", async () => {
    await using here = await kit();
    const worker = await here.worker(WORKER);
    const commander = createCommander({ client: here.client });
    const pin = { type: "Cache", block_hashes: ["1"], pin: true, owner: "tenant" } as const;
    await here.settle(commander.send(WORKER, pin));
    expect(worker.received[0]?.owner).toBe("tenant");
  });

  test("a lost answer is requested again under the same id", async () => {
    await using here = await kit();
    const worker = await here.worker(WORKER);
    worker.behave = ({ command, nth }, answer) => {
      const receipt = worker.carryOut(command);
      if (nth > 2) answer(receipt);
    };
    const commander = createCommander({ client: here.client });
    const outcome = await here.settle(commander.send(WORKER, WARM));
    expect(outcome.kind).toBe("receipt");
    expect(worker.received.length).toBeGreaterThan(2);
    expect(worker.carriedOut).toHaveLength(1);
  });

  test("absent, silent and refusing agents have distinct outcomes", async () => {
    await using here = await kit();
    const commander = createCommander({ client: here.client, deadlineMs: 5_000 });
    const absent = await here.settle(commander.send("nobody" as WorkerId, WARM));
    expect(absent).toEqual({ kind: "refused", why: "no worker listens as nobody" });
    const worker = await here.worker(WORKER);
    worker.behave = () => undefined;
    expect(await here.settle(commander.send(WORKER, WARM))).toEqual({ kind: "no_answer" });
    worker.behave = ({ command }, answer) => {
      const reason = "rate_limited: 500 commands a second";
      answer(receiptOf(WORKER, command, { status: "rejected", reason }));
    };
    expect(await here.settle(commander.send(WORKER, WARM))).toEqual({
      ...{ kind: "refused", why: "rate_limited: 500 commands a second" },
    });
  });

  test("send never rejects on a bad name, an oversized command or a closed client", async () => {
    await using here = await kit();
    const commander = createCommander({ client: here.client });
    const strange = await here.settle(commander.send("a b" as WorkerId, WARM));
    const block_keys = new Array(100_000).fill("a".repeat(64));
    const large = await here.settle(commander.send(WORKER, { ...WARM, block_keys }));
    await here.client[Symbol.asyncDispose]();
    const closed = await here.settle(commander.send(WORKER, WARM));
    expect([strange.kind, large.kind, closed.kind]).toEqual(["refused", "refused", "refused"]);
  });

  test("commands beyond the limit in flight are refused immediately", async () => {
    await using here = await kit();
    const worker = await here.worker(WORKER);
    const answers: (() => void)[] = [];
    worker.behave = ({ command }, answer) => {
      answers.push(() => answer(worker.carryOut(command)));
    };
    const commander = createCommander({ client: here.client, inFlightMax: 3 });
    const sent = Array.from({ length: 4 }, () => commander.send(WORKER, WARM));
    expect((await sent[3])?.kind).toBe("refused");
    await here.settle(
      (async () => {
        while (answers.length < 3) await new Promise((resolve) => setImmediate(resolve));
      })(),
    );
    for (const answer of answers) answer();
    const outcomes = await here.settle(Promise.all(sent.slice(0, 3)));
    expect(outcomes.map(({ kind }) => kind)).toEqual(["receipt", "receipt", "receipt"]);
    const again = commander.send(WORKER, WARM);
    await here.settle(
      (async () => {
        while (answers.length < 4) await new Promise((resolve) => setImmediate(resolve));
      })(),
    );
    answers[3]?.();
    expect((await here.settle(again)).kind).toBe("receipt");
  });
});
