import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { pin, prune } from "../../../src/control/client/index.ts";
import type { Receipt } from "../../../src/control/index.ts";
import { HearthError } from "../../../src/core/index.ts";
import { waitFor } from "../../support/index.ts";
import { encode, FakeWorker, type Kit, kit, receiptOf } from "./kit.ts";

describe("send", () => {
  test(
    "returns the receipt with exact 64-bit integers; the command gets an id and " + "issuer",
    async () => {
      await using fleet = await kit("router-1");
      const worker = await fleet.worker("node-1");
      let contentType: string | undefined;
      worker.behave = ({ command, raw }, answer) => {
        contentType = raw.headers["Content-Type"];
        // The stream uses the reply subject itself; the receipt goes to the subject in the header.
        expect(raw.headers["Hearth-Reply"]).toBe(raw.reply!);
        fleet.bus.publish(raw.reply!, encode({ stream: "COMMANDS", seq: 1 }));
        answer(worker.carryOut(command));
      };
      const block = 2n ** 64n - 1n;
      const result = await fleet.settle(fleet.client.send("node-1", pin([block, -1])));
      expect(worker.received).toEqual([
        {
          ...{ type: "Cache", block_hashes: [block, -1], pin: true },
          ...{ id: expect.stringMatching(/^[0-9a-f]{32}$/), issuer: "router-1" },
        },
      ]);
      expect(contentType).toBe("application/json");
      expect(result).toEqual({
        kind: "receipt",
        receipt: receiptOf("node-1", worker.received[0]!),
      });
    },
  );

  test("keeps an existing id and issuer", async () => {
    await using fleet = await kit("router-1");
    const worker = await fleet.worker("node-1");
    const command = pin([1], { id: "mine", issuer: "me" });
    await fleet.settle(fleet.client.send("node-1", command));
    expect(worker.received[0]).toMatchObject({ id: "mine", issuer: "me" });
  });

  test("a lost answer is retried with the same id and has one effect", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = ({ command, nth }, answer) => {
      const receipt = worker.carryOut(command);
      if (nth > 3) answer(receipt);
    };
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result).toMatchObject({ kind: "receipt", receipt: { duplicate: true } });
    expect(new Set(worker.received.map(({ id }) => id)).size).toBe(1);
    expect(worker.received).toHaveLength(4);
    expect(worker.carriedOut).toHaveLength(1);
  });

  test("the answer to an earlier attempt counts, and a duplicate is ignored", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    const late: (() => void)[] = [];
    worker.behave = ({ command }, answer) => {
      const receipt = worker.carryOut(command);
      late.push(() => answer(receipt));
      if (late.length < 2) return;
      // Both answers, the second one first, each twice.
      for (const send of [...late.reverse(), ...late]) send();
      late.length = 0;
    };
    const first = await fleet.settle(fleet.client.send("node-1", pin([1], { id: "a" })));
    const second = await fleet.settle(fleet.client.send("node-1", pin([1], { id: "b" })));
    expect(first).toMatchObject({ receipt: { id: "a" } });
    expect(second).toMatchObject({ receipt: { id: "b" } });
    expect(worker.carriedOut).toEqual(["a", "b"]);
  });

  test("progress is reported, and neither ends the wait nor causes another attempt", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    const running = (done: number): Partial<Receipt> => ({
      status: "running",
      progress: { done_blocks: done, total_blocks: 3, bytes: done },
    });
    worker.behave = ({ command }, answer) => {
      for (let done = 0; done <= 3; done++) {
        fleet.clock.after(done * 4_000, () => {
          answer(receiptOf("node-1", command, done < 3 ? running(done) : {}));
        });
      }
    };
    const seen: unknown[] = [];
    const onProgress = ({ progress }: Receipt) => seen.push(progress?.done_blocks);
    const result = await fleet.settle(fleet.client.send("node-1", pin([1]), { onProgress }));
    expect(result.kind).toBe("receipt");
    expect(seen).toEqual([0, 1, 2]);
    expect(worker.received).toHaveLength(1);
  });

  test("a worker that falls silent gets the command again", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = ({ command, nth }, answer) => {
      answer(receiptOf("node-1", command, nth === 1 ? { status: "running" } : {}));
    };
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result.kind).toBe("receipt");
    expect(worker.received).toHaveLength(2);
  });

  test("without an answer the result is unanswered at the deadline", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = () => undefined;
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result).toEqual({
      kind: "unanswered",
      tries: worker.received.length,
      why: "node-1 did not answer",
    });
    // Waits of 1, 2, 4, 8, 10, 10 s, each ±25 %, within 30 s.
    expect(worker.received.length).toBeGreaterThanOrEqual(5);
    expect(worker.received.length).toBeLessThanOrEqual(6);
    expect(fleet.clock.monotonicMs()).toBeWithin(30_000, 30_200);
  });

  test(
    "without a subscriber the result is unreachable at the deadline, or at " + "absentMs",
    async () => {
      await using fleet = await kit();
      const options = { absentMs: 2_000 };
      const result = await fleet.settle(fleet.client.send("node-9", pin([1]), options), 10);
      expect(result).toMatchObject({ kind: "unreachable", why: "no worker listens as node-9" });
      expect(fleet.clock.monotonicMs()).toBeWithin(2_000, 4_500);
      let worker: FakeWorker | undefined;
      fleet.clock.after(6_000, () => {
        worker = new FakeWorker(fleet.bus, "node-9");
      });
      const patient = await fleet.settle(fleet.client.send("node-9", pin([1])));
      expect(patient.kind).toBe("receipt");
      expect(worker?.carriedOut).toHaveLength(1);
    },
  );
});

describe("a busy worker", () => {
  const busy: Partial<Receipt> = { status: "rejected", reason: "busy: 8192 commands are waiting" };

  test("refuses the command, and the caller gets the refusal", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = ({ command }, answer) => answer(receiptOf("node-1", command, busy));
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result).toMatchObject({ kind: "receipt", receipt: busy });
    expect(worker.received).toHaveLength(1);
  });

  test("does not settle an earlier attempt whose answer was lost", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = ({ command, nth }, answer) => {
      if (nth === 1) worker.carryOut(command);
      else if (nth < 4) answer(receiptOf("node-1", command, busy));
      else answer(worker.carryOut(command));
    };
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result).toMatchObject({ kind: "receipt", receipt: { status: "ok", duplicate: true } });
    worker.behave = ({ nth, command }, answer) => {
      if (nth > 5) answer(receiptOf("node-1", command, busy));
    };
    const never = await fleet.settle(fleet.client.send("node-1", pin([1]), { deadlineMs: 8_000 }));
    expect(never.kind).toBe("unanswered");
  });
});

describe("without a broker", () => {
  test("no message stays queued to be carried out later", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    fleet.hub.goDown();
    await waitFor(() => fleet.bus.state.status !== "connected");
    const result = await fleet.settle(fleet.client.send("node-1", pin([1]), { deadlineMs: 5_000 }));
    expect(result).toMatchObject({ kind: "unreachable", tries: 0 });
    expect(result).toHaveProperty("why", expect.stringContaining("no connection to the broker"));
    expect(fleet.bus.state.queuedMessages).toBe(0);
    fleet.hub.comeUp();
    await fleet.settle(fleet.bus.connected(60_000));
    expect(worker.received).toEqual([]);
  });

  test("it is waited for until the deadline", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    fleet.hub.goDown();
    await waitFor(() => fleet.bus.state.status !== "connected");
    const result = fleet.client.send("node-1", pin([1]), { deadlineMs: 120_000 });
    fleet.clock.after(5_000, () => fleet.hub.comeUp());
    expect((await fleet.settle(result)).kind).toBe("receipt");
    expect(worker.carriedOut).toHaveLength(1);
  });

  test("a signal ends the wait for it", async () => {
    await using fleet = await kit();
    fleet.hub.goDown();
    await waitFor(() => fleet.bus.state.status !== "connected");
    const controller = new AbortController();
    const result = fleet.client.send("node-1", pin([1]), { signal: controller.signal });
    controller.abort(new HearthError("ABORTED", "interrupted by a test"));
    await expect(result).rejects.toThrow("interrupted by a test");
  });
});

describe("rejected input", () => {
  test("answers that are not a receipt, or another worker's", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = ({ command, raw }, answer) => {
      const good = receiptOf("node-1", command);
      const poison: unknown[] = [
        ...[null, [], "ok", 7, {}, { ...good, status: "fine" }, { ...good, counts: {} }],
        ...[
          { ...good, blocks: [null] },
          { ...good, blocks: [{ outcome: "done" }] },
        ],
        ...[receiptOf("node-2", command), { ...good, reason: 5 }, { ...good, held: {} }],
        { ...good, blocks: [{ block: 1, outcome: "held", by: "x" }] },
      ];
      const bytes = [new Uint8Array([0xff, 0xfe]), new TextEncoder().encode("{"), new Uint8Array()];
      for (const data of [...poison.map(encode), ...bytes]) {
        fleet.bus.publish(raw.reply!, data);
      }
      fleet.clock.after(500, () => answer(good));
    };
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])), 10);
    expect(result).toMatchObject({ kind: "receipt", receipt: { worker_id: "node-1" } });
    expect(fleet.clock.monotonicMs()).toBeGreaterThanOrEqual(500);
  });

  test.each(["", "a b", "a.>", "*", "broadcast"])("%p as a worker's name", async (name) => {
    await using fleet = await kit();
    await expect(fleet.client.send(name, pin([1]))).rejects.toThrow("is not a valid worker name");
    expect(() => fleet.client.publish(name, pin([1]))).toThrow("is not a valid worker name");
  });

  test("a command above the broker's maximum size", async () => {
    await using fleet = await kit();
    const owner = "ab".repeat(1_000_000);
    const sent = fleet.client.send("node-1", pin([1], { owner }));
    await expect(sent).rejects.toMatchObject({ code: "LIMIT" });
  });
});

describe("the end", () => {
  test("a signal ends a wait for an answer, and nothing is sent after it", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = () => undefined;
    const controller = new AbortController();
    const { signal } = controller;
    const result = fleet.client.send("node-1", pin([1]), { signal });
    await waitFor(() => worker.received.length === 1);
    controller.abort();
    await expect(result).rejects.toMatchObject({ code: "ABORTED" });
    await fleet.clock.advanceAsync(20_000, 500);
    expect(worker.received).toHaveLength(1);
    await expect(fleet.client.send("node-1", pin([1]), { signal })).rejects.toMatchObject({
      code: "ABORTED",
    });
  });

  test("closing ends all waits, and leaves the caller's bus alone", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = () => undefined;
    const result = fleet.client.send("node-1", pin([1]));
    await waitFor(() => worker.received.length === 1);
    const ended = result.catch((thrown: unknown) => thrown);
    await fleet.client[Symbol.asyncDispose]();
    expect(await ended).toMatchObject({ code: "ENGINE_CLOSED" });
    await expect(fleet.client.send("node-1", pin([1]))).rejects.toMatchObject({
      code: "ENGINE_CLOSED",
    });
    expect(fleet.bus.state.status).toBe("connected");
  });
});

test("publish waits for nothing", async () => {
  await using fleet = await kit("router-1");
  const worker = await fleet.worker("node-1");
  expect(fleet.client.publish("node-1", pin([5]))).toBe("sent");
  await waitFor(() => worker.received.length === 1);
  expect(worker.received[0]).toMatchObject({ type: "Cache", issuer: "router-1" });
});

async function three(fleet: Kit) {
  return Promise.all(["node-b", "node-a", "node-c"].map((name) => fleet.worker(name)));
}

describe("workers", () => {
  test("are those that answer discovery, each once, sorted by name", async () => {
    await using fleet = await kit();
    const [worker] = await three(fleet);
    fleet.bus.subscribe("$SRV.PING.hearth-agent", ({ reply }) => {
      const other = [
        null,
        "x",
        {},
        { name: "hearth-agent" },
        { name: "hearth-agent", metadata: 1 },
      ];
      for (const poison of other) fleet.bus.publish(reply!, encode(poison));
      fleet.bus.publish(reply!, worker!.ping("something-else"));
      fleet.bus.publish(reply!, worker!.ping());
    });
    expect(await fleet.settle(fleet.client.workers())).toEqual(
      ["node-a", "node-b", "node-c"].map((id) => ({ id, version: "1.2.3", incarnation: "77" })),
    );
  });

  test("without workers the result is immediate", async () => {
    await using fleet = await kit();
    expect(await fleet.client.workers(60_000)).toEqual([]);
    expect(fleet.clock.monotonicMs()).toBe(0);
  });
});

describe("broadcast", () => {
  test("one message reaches all workers, and all answer", async () => {
    await using fleet = await kit("router-1");
    const workers = await three(fleet);
    const result = await fleet.settle(fleet.client.broadcast(prune(5)));
    expect(result).toEqual({
      receipts: ["node-a", "node-b", "node-c"].map((name) =>
        receiptOf(name, workers[0]!.received[0]!),
      ),
      silent: [],
      why: null,
    });
    expect(workers.map(({ received }) => received.length)).toEqual([1, 1, 1]);
    expect(new Set(workers.map(({ received }) => received[0]!.id)).size).toBe(1);
    // The last of three answers ends the wait: no other is expected.
    expect(fleet.clock.monotonicMs()).toBeLessThanOrEqual(1_200);
  });

  test(
    "a silent worker gets the command directly with the same id, with one effect " + "each",
    async () => {
      await using fleet = await kit();
      const workers = await three(fleet);
      const [deaf, mute] = workers;
      // One worker missed the broadcast; another carried it out and its answer was lost.
      deaf!.behave = ({ command, nth }, answer) => {
        if (nth > 1) answer(deaf!.carryOut(command));
      };
      mute!.behave = ({ command, nth }, answer) => {
        const receipt = mute!.carryOut(command);
        if (nth > 1) answer(receipt);
      };
      const result = await fleet.settle(fleet.client.broadcast(pin([1])));
      expect(result.silent).toEqual([]);
      expect(result.receipts.map(({ worker_id }) => worker_id)).toEqual([
        "node-a",
        "node-b",
        "node-c",
      ]);
      const ids = new Set(workers.flatMap(({ received }) => received.map(({ id }) => id)));
      expect(ids.size).toBe(1);
      for (const { carriedOut } of workers) expect(carriedOut).toHaveLength(1);
      expect(workers[2]!.received).toHaveLength(1);
    },
  );

  test("a worker that stays silent is named at the deadline", async () => {
    await using fleet = await kit();
    const workers = await three(fleet);
    workers[0]!.behave = () => undefined;
    const wish = fleet.client.broadcast(pin([1]), { deadlineMs: 9_000 });
    const result = await fleet.settle(wish);
    expect(result.silent).toEqual(["node-b"]);
    expect(result.receipts.map(({ worker_id }) => worker_id)).toEqual(["node-a", "node-c"]);
    expect(fleet.clock.monotonicMs()).toBeWithin(9_000, 9_200);
  });

  test("a worker that was not discovered but answers is included", async () => {
    await using fleet = await kit();
    const workers = await three(fleet);
    workers[0]!.isFound = false;
    workers[2]!.behave = ({ command }, answer) => {
      fleet.clock.after(500, () => answer(workers[2]!.carryOut(command)));
    };
    const { receipts, silent } = await fleet.settle(fleet.client.broadcast(pin([1])));
    expect(silent).toEqual([]);
    expect(receipts.map(({ worker_id }) => worker_id)).toEqual(["node-a", "node-b", "node-c"]);
    for (const worker of workers) worker.isFound = false;
    const again = await fleet.settle(fleet.client.broadcast(pin([2])));
    expect(again).toMatchObject({ silent: [], why: null });
    expect(again.receipts).toHaveLength(3);
  });

  test("a command refused by broadcast is not sent directly either", async () => {
    await using fleet = await kit();
    const workers = await three(fleet);
    workers[0]!.behave = () => undefined;
    for (const worker of workers.slice(1)) {
      const refused = { status: "rejected", reason: "broadcast_refused: Cache" } as const;
      worker.behave = ({ command }, answer) => answer(receiptOf(worker.name, command, refused));
    }
    const { receipts, silent } = await fleet.settle(fleet.client.broadcast(pin([1])));
    expect(receipts).toHaveLength(2);
    expect(silent).toEqual(["node-b"]);
    expect(workers[0]!.received).toHaveLength(1);
  });

  test("without workers or a connection the result says why", async () => {
    await using fleet = await kit();
    const alone = await fleet.settle(fleet.client.broadcast(pin([1])));
    expect(alone).toEqual({ receipts: [], silent: [], why: "no worker answered discovery" });
    fleet.hub.goDown();
    await waitFor(() => fleet.bus.state.status !== "connected");
    const none = await fleet.settle(fleet.client.broadcast(pin([1]), { deadlineMs: 3_000 }));
    expect(none).toMatchObject({ receipts: [], silent: [] });
    expect(none.why).toContain("no connection to the broker");
  });
});

/** The network's effects on a message and its answer. */
const fate = fc.record({
  isLost: fc.boolean(),
  answers: fc.integer({ min: 0, max: 2 }),
  delayMs: fc.integer({ min: 0, max: 3_000 }),
});

test(
  "lost, duplicated, late and reordered messages: one effect, and each command gets its " +
    "own answer",
  async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fate, { minLength: 1, maxLength: 20 }),
        fc.integer({ min: 1, max: 6 }),
        async (fates, commands) => {
          await using fleet = await kit("router");
          const worker = await fleet.worker("node-1");
          let nth = 0;
          worker.behave = ({ command }, answer) => {
            const { isLost, answers, delayMs } = fates[nth++] ?? HEALTHY;
            if (isLost) return;
            const receipt = worker.carryOut(command);
            for (let copy = 0; copy < answers; copy++) {
              fleet.clock.after(delayMs * (copy + 1), () => answer(receipt));
            }
          };
          const ids = Array.from({ length: commands }, (_, at) => `id-${at}`);
          const results = await Promise.all(
            ids.map((id) =>
              fleet.settle(fleet.client.send("node-1", pin([1], { id }), { deadlineMs: 600_000 })),
            ),
          );
          expect(results.map((result) => result.kind === "receipt" && result.receipt.id)).toEqual(
            ids,
          );
          expect([...worker.carriedOut].sort()).toEqual(ids);
        },
      ),
      { numRuns: 60 },
    );
  },
);

const HEALTHY = { isLost: false, answers: 1, delayMs: 0 };
