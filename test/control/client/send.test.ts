import { describe, expect, test } from "bun:test";
import { pin } from "../../../src/control/client/index.ts";
import type { Receipt } from "../../../src/control/index.ts";
import { HearthError } from "../../../src/core/index.ts";
import { waitFor } from "../../support/index.ts";
import { encode, FakeWorker, receiptOf } from "./fake-worker.ts";
import { kit } from "./kit.ts";

describe("send", () => {
  test("brings the receipt, 64-bit integers whole; the command gets id and issuer", async () => {
    await using fleet = await kit("router-1");
    const worker = await fleet.worker("node-1");
    let contentType: string | undefined;
    worker.behave = ({ command, raw }, answer) => {
      contentType = raw.headers["Content-Type"];
      // A stream answers the reply subject itself; the receipt goes where the header says.
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
    expect(result).toEqual({ kind: "receipt", receipt: receiptOf("node-1", worker.received[0]!) });
  });

  test("leaves an id and an issuer that are there", async () => {
    await using fleet = await kit("router-1");
    const worker = await fleet.worker("node-1");
    const command = pin([1], { id: "mine", issuer: "me" });
    await fleet.settle(fleet.client.send("node-1", command));
    expect(worker.received[0]).toMatchObject({ id: "mine", issuer: "me" });
  });

  test("an answer is lost: the same id again, and one effect", async () => {
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

  test("the answer to an earlier try counts, and a second one disturbs nobody", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    const late: (() => void)[] = [];
    worker.behave = ({ command }, answer) => {
      const receipt = worker.carryOut(command);
      late.push(() => answer(receipt));
      if (late.length < 2) return;
      // Both answers, the second one first, each of them twice.
      for (const send of [...late.reverse(), ...late]) send();
      late.length = 0;
    };
    const first = await fleet.settle(fleet.client.send("node-1", pin([1], { id: "a" })));
    const second = await fleet.settle(fleet.client.send("node-1", pin([1], { id: "b" })));
    expect(first).toMatchObject({ receipt: { id: "a" } });
    expect(second).toMatchObject({ receipt: { id: "b" } });
    expect(worker.carriedOut).toEqual(["a", "b"]);
  });

  test("progress is told, and does not end the wait or cause another try", async () => {
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

  test("a worker that fell silent at work is asked again", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = ({ command, nth }, answer) => {
      answer(receiptOf("node-1", command, nth === 1 ? { status: "running" } : {}));
    };
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result.kind).toBe("receipt");
    expect(worker.received).toHaveLength(2);
  });

  test("nobody answers: at the deadline it says that it does not know", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = () => undefined;
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result).toEqual({
      kind: "unanswered",
      tries: worker.received.length,
      why: "node-1 did not answer",
    });
    // Waits of 1, 2, 4, 8, 10, 10 s, each up to a quarter more or less, in 30 s.
    expect(worker.received.length).toBeGreaterThanOrEqual(5);
    expect(worker.received.length).toBeLessThanOrEqual(6);
    expect(fleet.clock.monotonicMs()).toBeWithin(30_000, 30_200);
  });

  test("nobody listens: said at the deadline, or sooner where the caller likes", async () => {
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
  });
});

describe("a worker that takes no more", () => {
  const busy: Partial<Receipt> = { status: "rejected", reason: "busy: 8192 commands are waiting" };

  test("refuses the command, and the caller hears of it", async () => {
    await using fleet = await kit();
    const worker = await fleet.worker("node-1");
    worker.behave = ({ command }, answer) => answer(receiptOf("node-1", command, busy));
    const result = await fleet.settle(fleet.client.send("node-1", pin([1])));
    expect(result).toMatchObject({ kind: "receipt", receipt: busy });
    expect(worker.received).toHaveLength(1);
  });

  test("says nothing of a try before, whose answer was lost", async () => {
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
  test("nothing is left behind that would be carried out later", async () => {
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

describe("what is not believed", () => {
  test("answers that are no receipt, or another worker's", async () => {
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
    await expect(fleet.client.send(name, pin([1]))).rejects.toThrow("is no worker's name");
    expect(() => fleet.client.publish(name, pin([1]))).toThrow("is no worker's name");
  });

  test("a command larger than the broker takes", async () => {
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
