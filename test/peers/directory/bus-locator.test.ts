import { describe, expect, test } from "bun:test";
import { type Bus, createLocalBus, LocalHub, openBus } from "../../../src/bus/index.ts";
import { HearthError, systemClock, type WorkerId } from "../../../src/core/index.ts";
import { BusLocator, LOCATE_KEYS_MAX, LOCATE_SUBJECT } from "../../../src/peers/directory/index.ts";
import { basics } from "../../bus/bus-bench.ts";
import { describeNats, ManualClock, NatsServer } from "../../support/index.ts";
import { answerLocate, type LocateQuestion } from "./router-stand-in.ts";

const NAMESPACE = new Uint8Array(32).fill(0xab);
const keyOf = (n: number) => new Uint8Array(32).fill(n);
const NEVER = new AbortController().signal;

function locatorOn(bus: Bus, clock = systemClock) {
  const locator = new BusLocator({ bus, clock, cluster: "hearth", self: "b" as WorkerId });
  return (keys: Uint8Array[], deadlineMs = 5_000, signal = NEVER) =>
    locator.locate(NAMESPACE, keys, deadlineMs, signal);
}

/** A bus whose other end answers as the test says. */
function scriptedBus() {
  const waiting: ((outcome: unknown) => void)[] = [];
  const asked: number[] = [];
  const it = {
    asked,
    clock: new ManualClock(),
    fault: null as Error | null,
    answer: (...workers: string[]) => {
      const data = Buffer.from(JSON.stringify({ workers, blocks: [workers.map((_, i) => i)] }));
      waiting.shift()!({ kind: "reply", message: { data } });
    },
    timeOut: () => waiting.shift()!({ kind: "timeout" }),
    bus: {
      request: (_subject: string, _data: Uint8Array, { timeoutMs }: { timeoutMs: number }) => {
        if (it.fault !== null) return Promise.reject(it.fault);
        asked.push(timeoutMs);
        return new Promise((resolve) => waiting.push(resolve));
      },
    } as unknown as Bus,
  };
  return it;
}

/** Two ends of one hub. */
async function ends() {
  const hub = new LocalHub();
  const [here, there] = [createLocalBus(hub, basics()), createLocalBus(hub, basics())];
  await Promise.all([here.connected(5_000), there.connected(5_000)]);
  return {
    here,
    there,
    /** Answers every request with this text. */
    answer: (text: string) =>
      there.subscribe(LOCATE_SUBJECT, ({ reply }) => {
        there.publish(reply!, Buffer.from(text));
      }),
    [Symbol.asyncDispose]: async () => {
      await Promise.all([here.close(0), there.close(0)]);
    },
  };
}

describe("the router locator", () => {
  test("names the workers of each block, without this host", async () => {
    await using it = await ends();
    const questions: LocateQuestion[] = [];
    answerLocate(it.there, (key, question) => {
      questions.push(question);
      return { "01": ["b", "c", "a"], "02": ["a"] }[key.slice(0, 2)] ?? [];
    });
    const found = await locatorOn(it.here)([keyOf(1), keyOf(3), keyOf(2)]);
    expect(found as unknown).toEqual([["c", "a"], [], ["a"]]);
    expect(questions[0]).toEqual({
      version: 1,
      cluster: "hearth",
      worker_id: "b",
      namespace: NAMESPACE.toHex(),
      keys: [keyOf(1), keyOf(3), keyOf(2)].map((key) => key.toHex()),
    });
  });

  test("splits a long list into several requests", async () => {
    await using it = await ends();
    let parts = 0;
    it.there.subscribe(LOCATE_SUBJECT, () => void parts++);
    answerLocate(it.there, () => ["a"]);
    const keys = Array.from({ length: 2 * LOCATE_KEYS_MAX + 1 }, (_, i) => keyOf(i % 256));
    expect(await locatorOn(it.here)(keys)).toHaveLength(keys.length);
    expect(parts).toBe(3);
  });

  test("without a router a lookup does not wait, and the router is not asked again for a while", async () => {
    await using it = await ends();
    const clock = new ManualClock();
    const locate = locatorOn(it.here, clock);
    expect(await locate([keyOf(1)])).toBeNull();
    let asked = 0;
    answerLocate(it.there, () => {
      asked++;
      return ["a"];
    });
    clock.advance(1_900);
    expect(await locate([keyOf(1)])).toBeNull();
    expect(asked).toBe(0);
    clock.advance(200);
    expect(await locate([keyOf(1)])).toEqual([["a" as WorkerId]]);
  });

  test("an unresponsive router costs the deadline, and the signal ends the wait", async () => {
    await using it = await ends();
    it.there.subscribe(LOCATE_SUBJECT, () => undefined);
    expect(await locatorOn(it.here)([keyOf(1)], 50)).toBeNull();
    const stop = new AbortController();
    const asked = locatorOn(it.here)([keyOf(1)], 60_000, stop.signal);
    stop.abort();
    expect(await asked).toBeNull();
    expect(await locatorOn(it.here)([keyOf(1)], 60_000, stop.signal)).toBeNull();
  });

  test("an engine's short deadline does not stop others from asking the router", async () => {
    const it = scriptedBus();
    const locate = locatorOn(it.bus, it.clock);
    const hasty = locate([keyOf(1)], 25);
    it.clock.advance(25);
    expect(await hasty).toBeNull();
    it.clock.advance(5);
    it.answer("a");
    const patient = locate([keyOf(1)], 250);
    it.clock.advance(30);
    it.answer("a");
    expect(await patient).toEqual([["a" as WorkerId]]);
    // The measured latency is 30 ms, so a shorter deadline is not spent on the router.
    expect(await locate([keyOf(1)], 25)).toBeNull();
    expect(it.asked).toHaveLength(2);
    it.clock.advance(2_001);
    const again = locate([keyOf(1)], 25);
    it.answer("b", "a");
    expect(await again).toEqual([["a" as WorkerId]]);
    expect(it.asked).toHaveLength(3);
  });

  test("a router too slow for short deadlines is awaited, then paused", async () => {
    const it = scriptedBus();
    const locate = locatorOn(it.bus, it.clock);
    const hasty = locate([keyOf(1)], 25);
    it.clock.advance(25);
    expect(await hasty).toBeNull();
    expect(it.asked).toEqual([250]);
    expect(await locate([keyOf(1)], 25)).toBeNull();
    expect(it.asked).toHaveLength(1);
    it.clock.advance(225);
    it.timeOut();
    await Bun.sleep(0);
    expect(await locate([keyOf(1)], 5_000)).toBeNull();
    expect(it.asked).toHaveLength(1);
  });

  test("a bus that cannot send requests counts as one without a router", async () => {
    const it = scriptedBus();
    it.fault = new HearthError("BUS_CLOSED" as never, "it is closed");
    expect(await locatorOn(it.bus, it.clock)([keyOf(1)])).toBeNull();
    it.fault = new Error("something else");
    it.clock.advance(2_001);
    expect(await locatorOn(it.bus, it.clock)([keyOf(1)])).toBeNull();
  });

  const NONSENSE = [
    "",
    "null",
    "[]",
    "{}",
    '{"workers":["a"],"blocks":[]}',
    '{"workers":["a"],"blocks":[[0],[0]]}',
    '{"workers":["a b"],"blocks":[[0]]}',
    '{"workers":[1],"blocks":[[0]]}',
    '{"workers":["a"],"blocks":[[1]]}',
    '{"workers":["a"],"blocks":[[-1]]}',
    '{"workers":["a"],"blocks":[["x"]]}',
    '{"workers":["a"],"blocks":[0]}',
    `{"workers":${"[".repeat(5_000)}`,
    `{"workers":["a"],"blocks":[[0]]}${" ".repeat(300_000)}`,
  ];

  for (const text of NONSENSE) {
    test(`an invalid answer counts as no answer: ${text.slice(0, 40)}`, async () => {
      await using it = await ends();
      it.answer(text);
      expect(await locatorOn(it.here)([keyOf(1)])).toBeNull();
    });
  }
});

describeNats("the router locator over NATS", () => {
  test("answers arrive, but not while the broker is away", async () => {
    await using server = await NatsServer.start();
    const open = () => openBus({ ...basics(), url: server.tcpUrl, name: "locate" });
    const [here, there] = [open(), open()];
    answerLocate(there, () => ["a"]);
    await Promise.all([here.connected(5_000), there.flush(5_000)]);
    expect(await locatorOn(here)([keyOf(1)])).toEqual([["a" as WorkerId]]);
    await server.kill();
    expect(await locatorOn(here)([keyOf(1)], 500)).toBeNull();
    await Promise.all([here.close(0), there.close(0)]);
  });
});
