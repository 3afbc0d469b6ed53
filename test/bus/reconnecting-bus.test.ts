import { describe, expect, test } from "bun:test";
import { type BrokerConnection, ReconnectingBus } from "../../src/bus/index.ts";
import { seededRandom } from "../../src/core/index.ts";
import { ManualClock } from "../support/index.ts";
import { FakeConnection } from "./fake-connection.ts";

/** A bus whose connections and clock the test controls. */
function world() {
  const clock = new ManualClock();
  const dials: {
    atMs: number;
    take(connection: BrokerConnection): void;
    refuse(why: string): void;
  }[] = [];
  const lines: string[] = [];
  const dial = () =>
    new Promise<BrokerConnection>((take, reject) => {
      const refuse = (why: string) => reject(new Error(why));
      dials.push({ atMs: clock.monotonicMs(), take, refuse });
    });
  const limits = { retryMinMs: 100, retryMaxMs: 1_600, pingMs: 10_000, silenceMs: 10_000 };
  const log = (_level: string, message: string, { why }: Readonly<Record<string, unknown>>) => {
    lines.push(why === undefined ? message : `${message}: ${why}`);
  };
  const basics = { clock, random: seededRandom(1), limits, log };
  const bus = new ReconnectingBus(dial, basics, { isDurable: false });
  /** Lets pending callbacks run. */
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  /** Advances the clock until the next dial. Returns the time it took. */
  const nextDial = async () => {
    const startMs = clock.monotonicMs();
    const { length } = dials;
    await settle();
    while (dials.length === length) await clock.advanceAsync(1);
    return clock.monotonicMs() - startMs;
  };
  return { clock, dials, lines, bus, settle, nextDial };
}

describe("a reconnecting bus", () => {
  test("backs off after each failure, up to a limit, with jitter", async () => {
    const { bus, dials, nextDial, lines } = world();
    const waits: number[] = [];
    for (let at = 0; at < 12; at++) {
      dials.at(-1)!.refuse("down");
      waits.push(await nextDial());
    }
    for (const [at, wait] of waits.entries()) {
      const whole = Math.min(1_600, 100 * 2 ** at);
      expect(wait).toBeGreaterThanOrEqual(whole / 2);
      expect(wait).toBeLessThanOrEqual(whole + 2);
    }
    expect(new Set(waits.slice(4)).size).toBeGreaterThan(4);
    expect(lines).toEqual(["NATS connection failed, retrying: down"]);
    dials.at(-1)!.refuse("refused");
    await nextDial();
    expect(lines).toHaveLength(2);
    await bus.close(0);
  });

  test("backs off if its connections keep being closed", async () => {
    const { bus, dials, settle, nextDial } = world();
    const waits: number[] = [];
    for (let at = 0; at < 8; at++) {
      const connection = new FakeConnection();
      dials.at(-1)!.take(connection);
      await settle();
      expect(bus.state.status).toBe("connected");
      connection.end("thrown out");
      waits.push(await nextDial());
    }
    expect(waits.at(-1)).toBeGreaterThanOrEqual(800);
    await bus.close(0);
  });

  test("resets its backoff after a stable connection", async () => {
    const { bus, clock, dials, settle, nextDial } = world();
    for (let at = 0; at < 6; at++) {
      dials.at(-1)!.refuse("down");
      await nextDial();
    }
    const connection = new FakeConnection();
    dials.at(-1)!.take(connection);
    await settle();
    for (let at = 0; at < 3; at++) {
      await clock.advanceAsync(10_000);
      connection.answer();
      await settle();
    }
    expect(connection.ended).toBeNull();
    connection.end("restarted");
    expect(await nextDial()).toBeLessThanOrEqual(102);
    await bus.close(0);
  });

  test("ends a connection that does not answer", async () => {
    const { bus, clock, dials, settle } = world();
    const connection = new FakeConnection();
    dials[0]!.take(connection);
    await settle();
    bus.publish("a", new Uint8Array(5));
    await clock.advanceAsync(10_000);
    expect(connection.asked).toBe(1);
    expect(connection.ended).toBeNull();
    await clock.advanceAsync(10_000);
    expect(connection.ended).toBe("no answer for 10 s");
    await settle();
    expect(bus.state).toMatchObject({ status: "reconnecting", doubtfulMessages: 1 });
    await bus.close(0);
  });

  test("closed while dialling accepts no connection and leaves no timer", async () => {
    const { bus, clock, dials, settle } = world();
    await bus.close(1_000);
    const late = new FakeConnection();
    dials[0]!.take(late);
    await settle();
    expect(late.ended).toBe("closed by this process");
    expect(bus.state.status).toBe("closed");
    expect(clock.pending).toBe(0);
    expect(dials).toHaveLength(1);
  });

  test("closed while connected leaves no timer", async () => {
    const { bus, clock, dials, settle } = world();
    const connection = new FakeConnection();
    dials[0]!.take(connection);
    await settle();
    const asked = bus.request("a", new Uint8Array(), { timeoutMs: 60_000 });
    const closing = bus.close(1_000);
    await settle();
    connection.answer();
    await closing;
    expect(await asked).toEqual({ kind: "unreachable" });
    expect(connection.ended).toBe("closed by this process");
    await settle();
    expect(clock.pending).toBe(0);
    expect(dials).toHaveLength(1);
  });

  test("close waits at most its timeout for a broker that never confirms", async () => {
    const { bus, clock, dials, settle } = world();
    dials[0]!.take(new FakeConnection());
    await settle();
    bus.publish("a", new Uint8Array(1));
    let isClosed = false;
    void bus.close(500).then(() => {
      isClosed = true;
    });
    await clock.advanceAsync(499);
    expect(isClosed).toBe(false);
    await clock.advanceAsync(1);
    await settle();
    expect(isClosed).toBe(true);
  });

  test("delivers hostile message content unchanged", async () => {
    const { bus, dials, settle } = world();
    const seen: unknown[] = [];
    bus.subscribe("a", (message) => void seen.push(message));
    const connection = new FakeConnection();
    dials[0]!.take(connection);
    await settle();
    const headers = Object.assign(Object.create(null), { ["__proto__"]: "x" });
    const message = { subject: "a", data: new Uint8Array(), reply: null, headers };
    connection.subscribed.get("a")!({ ...message, status: 0 });
    expect(seen).toEqual([message]);
    expect(({} as { x?: string }).x).toBeUndefined();
    await bus.close(0);
  });
});
