import { describe, expect, test } from "bun:test";
import type { BusMessage } from "../../src/bus/index.ts";
import { waitFor } from "../support/index.ts";
import { type Bench, bytes, type LogLine, text } from "./bus-bench.ts";

/** Failures of the broker, and closing a bus. */
export function outagesContract(bench: Bench): void {
  const { open, fresh, collect } = bench;
  describe("a broker that dies", () => {
    test("is waited for: subscriptions stay, messages wait in order", async () => {
      const lines: LogLine[] = [];
      const [a, b] = [await open({}, lines), await open()];
      const subject = fresh();
      const { messages } = await collect(b, subject);
      const statuses: string[] = [];
      a.onStatus(({ status }) => {
        statuses.push(status);
        throw new Error("a listener's own fault");
      });
      await bench.world.goDown();
      await waitFor(() => a.state.status === "reconnecting" && b.state.status !== "connected");
      expect(a.state.server).toBeNull();
      expect(a.state.why).toBeString();
      for (let at = 0; at < 2_000; at++) {
        expect(a.publish(subject, bytes(String(at)))).toBe("queued");
      }
      expect(a.state.queuedMessages).toBe(2_000);
      expect(await a.request(subject, bytes("x"), { timeoutMs: 60_000 })).toEqual({
        kind: "unreachable",
      });
      expect(await a.connected(20)).toBe(false);
      expect(await a.flush(20)).toBe(false);
      await bench.world.comeUp();
      await waitFor(() => a.state.status === "connected" && b.state.status === "connected");
      // The first bus to reconnect may publish before the other one has subscribed, so only the
      // order is checked.
      expect(await a.flush(5_000)).toBe(true);
      a.publish(subject, bytes("after"));
      await waitFor(() => messages.some((message) => text(message) === "after"));
      const numbers = messages.slice(0, -1).map((message) => Number(text(message)));
      expect(numbers).toEqual([...numbers].sort((x, y) => x - y));
      expect(new Set(numbers).size).toBe(numbers.length);
      expect(a.state).toMatchObject({ queuedMessages: 0, queuedBytes: 0, reconnects: 1 });
      expect(a.state.sentMessages).toBe(2_001);
      expect(a.state.droppedMessages).toBe(0);
      expect(statuses).toEqual(["reconnecting", "connected"]);
    });

    test("fills a bounded queue; dropped messages are counted and logged once", async () => {
      const lines: LogLine[] = [];
      const bus = await open({ queueMessages: 100, queueBytes: 2 ** 20 }, lines);
      const small = await open({ queueMessages: 1_000, queueBytes: 10_000 });
      const subject = fresh();
      const { messages } = await collect(bus, subject);
      await bench.world.goDown();
      await waitFor(() => [bus, small].every(({ state }) => state.status === "reconnecting"));
      const outcomes = Array.from({ length: 150 }, (_, at) =>
        bus.publish(subject, bytes(String(at))),
      );
      expect(outcomes.filter((outcome) => outcome === "queued")).toHaveLength(100);
      expect(outcomes.slice(100)).toEqual(Array(50).fill("dropped"));
      for (let at = 0; at < 20; at++) small.publish(fresh(), new Uint8Array(1_000));
      expect(small.state.queuedBytes).toBeLessThanOrEqual(10_000);
      expect(small.state.queuedMessages + small.state.droppedMessages).toBe(20);
      await bench.world.comeUp();
      await waitFor(() => messages.length === 100);
      expect(messages.map(text)).toEqual(Array.from({ length: 100 }, (_, at) => String(at)));
      expect(bus.state.droppedMessages).toBe(50);
      const reported = lines.filter(({ message }) => message.includes("were dropped"));
      expect(reported.map(({ fields }) => fields.messages)).toEqual([50]);
      await waitFor(() => small.state.status === "connected");
    });

    test("does not end a service or a pending request", async () => {
      const [asks, serves] = [await open(), await open()];
      const [name, subject] = [fresh(), fresh()];
      const replies: string[] = [];
      const handler = ({ reply }: BusMessage) => void replies.push(reply!);
      const endpoints = [{ name: "commands", subject, handler }];
      serves.serve({ name, version: "1.0.0", description: "", metadata: {}, endpoints });
      await serves.flush(5_000);
      const pinged = async () => {
        const outcome = await asks.request(`$SRV.PING.${name}`, bytes(""), { timeoutMs: 5_000 });
        return outcome.kind === "reply" ? JSON.parse(text(outcome.message)).id : null;
      };
      const id = await pinged();
      expect(id).toBeString();
      const asked = asks.request(subject, bytes("x"), { timeoutMs: 20_000 });
      await waitFor(() => replies.length === 1);
      await bench.world.goDown();
      await waitFor(() => [asks, serves].every(({ state }) => state.status === "reconnecting"));
      await bench.world.comeUp();
      await waitFor(() => [asks, serves].every(({ state }) => state.status === "connected"));
      expect(await asks.flush(5_000)).toBe(true);
      serves.publish(replies[0]!, bytes("at last"));
      const outcome = await asked;
      expect(outcome.kind === "reply" && text(outcome.message)).toBe("at last");
      await serves.flush(5_000);
      expect(await pinged()).toBe(id);
    });
  });

  describe("closing", () => {
    test("sends queued messages, then drops the rest and logs it", async () => {
      const [a, b] = [await open(), await open()];
      const subject = fresh();
      const { messages } = await collect(b, subject);
      for (let at = 0; at < 1_000; at++) a.publish(subject, bytes("x"));
      const asked = a.request("$nobody.answers", bytes("x"), { timeoutMs: 60_000 });
      await a.close(5_000);
      await waitFor(() => messages.length === 1_000);
      expect(["unreachable", "noResponders"]).toContain((await asked).kind);
      expect(a.state).toMatchObject({ status: "closed", server: null });
      expect(a.publish(subject, bytes("x"))).toBe("dropped");
      expect(await a.request(subject, bytes("x"), { timeoutMs: 60_000 })).toEqual({
        kind: "unreachable",
      });
      expect(await a.connected(60_000)).toBe(false);
      expect(await a.flush(60_000)).toBe(false);
      a.subscribe(subject, () => undefined).unsubscribe();
      await a.close(60_000);
    });

    test("ends within its timeout while the broker is down", async () => {
      const lines: LogLine[] = [];
      const bus = await open({}, lines);
      await bench.world.goDown();
      await waitFor(() => bus.state.status === "reconnecting");
      bus.publish(fresh(), bytes("x"));
      const startedMs = performance.now();
      await bus.close(50);
      expect(performance.now() - startedMs).toBeLessThan(2_000);
      expect(bus.state).toMatchObject({ status: "closed", droppedMessages: 1 });
      await bench.world.comeUp();
    });
  });
}
