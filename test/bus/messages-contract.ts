import { describe, expect, test } from "bun:test";
import { waitFor } from "../support/index.ts";
import { type Bench, bytes, type LogLine, text } from "./bus-bench.ts";

/** Messages and subscriptions. */
export function messagesContract(bench: Bench): void {
  const { open, fresh, collect } = bench;
  describe("messages", () => {
    test("reach every subscriber unchanged, including the publisher's own", async () => {
      const [a, b] = [await open(), await open()];
      const subject = fresh();
      const [one, two] = [await collect(a, subject), await collect(b, subject)];
      const data = Uint8Array.from({ length: 256 }, (_, at) => at);
      expect(a.publish(subject, data)).toBe("sent");
      await waitFor(() => one.messages.length === 1 && two.messages.length === 1);
      for (const { messages } of [one, two]) {
        expect(messages[0]).toEqual({ subject, reply: null, headers: {}, data });
      }
      expect(a.state.sentMessages).toBe(1);
      expect(a.state.receivedMessages).toBe(1);
    });

    test("carry headers with any capitalization, and empty data", async () => {
      const [a, b] = [await open(), await open()];
      const subject = fresh();
      const { messages } = await collect(b, subject);
      const headers = { "Content-Type": "application/msgpack", "x-UniCode": "wörd", a: "" };
      a.publish(subject, new Uint8Array(), { headers, reply: "to.me" });
      await waitFor(() => messages.length === 1);
      expect(messages[0]).toEqual({ subject, reply: "to.me", headers, data: new Uint8Array() });
    });

    test("are copies that belong to the receiver", async () => {
      const [a, b] = [await open(), await open()];
      const subject = fresh();
      const [one, two] = [await collect(b, subject), await collect(b, subject)];
      a.publish(subject, bytes("first"));
      a.publish(subject, bytes("other"));
      await waitFor(() => one.messages.length === 2 && two.messages.length === 2);
      // The data is not a view of the connection's read buffer, which would keep the whole buffer
      // alive.
      expect(one.messages[0]!.data.buffer.byteLength).toBe(5);
      one.messages[0]!.data.fill(0);
      expect(two.messages.map(text)).toEqual(["first", "other"]);
      expect(text(one.messages[1]!)).toBe("other");
    });

    test("arrive in order, by the thousand", async () => {
      const [a, b] = [await open(), await open()];
      const subject = fresh();
      const { messages } = await collect(b, subject);
      for (let at = 0; at < 5_000; at++) a.publish(subject, bytes(String(at)));
      await waitFor(() => messages.length === 5_000);
      expect(messages.map(text)).toEqual(Array.from({ length: 5_000 }, (_, at) => String(at)));
    });

    test("that are too large or have an invalid subject are dropped and counted", async () => {
      const [a, b] = [await open(), await open()];
      const subject = fresh();
      const { messages } = await collect(b, subject);
      expect(a.payloadBytesMax).toBe(bench.world.payloadBytesMax);
      expect(a.publish(subject, new Uint8Array(bench.world.payloadBytesMax + 1))).toBe("dropped");
      for (const wrong of ["", "a b", "a\r\nPUB b 0\r\n", "a.*", ">", "a..b", ".", "a\t"]) {
        expect(a.publish(wrong, bytes("x"))).toBe("dropped");
        expect(a.publish(subject, bytes("x"), { reply: wrong })).toBe("dropped");
      }
      for (const headers of [{ "a\r\nb": "c" }, { a: "b\r\nc: d" }, { "a:": "b" }, { "": "b" }]) {
        expect(a.publish(subject, bytes("x"), { headers })).toBe("dropped");
      }
      expect(a.publish(subject, new Uint8Array(bench.world.payloadBytesMax))).toBe("sent");
      a.publish(subject, bytes("last"));
      await waitFor(() => messages.some((message) => text(message) === "last"), 15_000);
      expect(messages.at(-2)!.data.length).toBe(bench.world.payloadBytesMax);
      expect(a.state.status).toBe("connected");
      expect(a.state.droppedMessages).toBe(21);
    });
  });

  describe("subscriptions", () => {
    test("follow wildcards", async () => {
      const bus = await open();
      const root = fresh();
      const patterns = [`${root}.*`, `${root}.>`, `${root}.*.c`, `${root}.b.c`, `*.b.c`];
      const all = await Promise.all(patterns.map((pattern) => collect(bus, pattern)));
      for (const subject of [`${root}.b`, `${root}.b.c`, `${root}.b.c.d`, root]) {
        bus.publish(subject, bytes("x"));
      }
      await waitFor(() => all[1]!.messages.length === 3);
      await bus.flush(5_000);
      const seen = all.map(({ messages }) => messages.map(({ subject }) => subject));
      expect(seen).toEqual([
        [`${root}.b`],
        [`${root}.b`, `${root}.b.c`, `${root}.b.c.d`],
        [`${root}.b.c`],
        [`${root}.b.c`],
        [`${root}.b.c`],
      ]);
    });

    test("of one queue share messages, others receive all", async () => {
      const buses = [await open(), await open(), await open()];
      const subject = fresh();
      const members = await Promise.all(buses.map((bus) => collect(bus, subject, "workers")));
      const beside = await collect(buses[0]!, subject);
      for (let at = 0; at < 300; at++) buses[1]!.publish(subject, bytes(String(at)));
      const total = () => members.reduce((sum, { messages }) => sum + messages.length, 0);
      await waitFor(() => total() === 300 && beside.messages.length === 300);
      const shared = members.flatMap(({ messages }) => messages.map(text));
      expect(new Set(shared).size).toBe(300);
      expect(members.filter(({ messages }) => messages.length > 0).length).toBeGreaterThan(1);
    });

    test("end immediately", async () => {
      const [a, b] = [await open(), await open()];
      const subject = fresh();
      const [ended, kept] = [await collect(b, subject), await collect(b, subject)];
      a.publish(subject, bytes("1"));
      await waitFor(() => ended.messages.length === 1);
      ended.subscription.unsubscribe();
      ended.subscription.unsubscribe();
      a.publish(subject, bytes("2"));
      await waitFor(() => kept.messages.length === 2);
      expect(ended.messages.map(text)).toEqual(["1"]);
    });

    test("continue after a handler that throws or rejects", async () => {
      const lines: LogLine[] = [];
      const [a, b] = [await open(), await open({}, lines)];
      const subject = fresh();
      const seen: string[] = [];
      b.subscribe(subject, (message) => {
        seen.push(text(message));
        if (text(message) === "throw") throw new Error("poison");
      });
      const rejecting = async () => Promise.reject(new Error("async poison"));
      b.subscribe(subject, rejecting);
      await b.flush(5_000);
      for (const data of ["1", "throw", "2"]) a.publish(subject, bytes(data));
      await waitFor(() => seen.length === 3 && b.state.handlerFaults === 4);
      expect(seen).toEqual(["1", "throw", "2"]);
      // One line for all of them: bad messages must not flood the log.
      expect(lines.filter(({ message }) => message.includes("threw"))).toHaveLength(1);
    });

    test("with an invalid subject fail an assertion", async () => {
      const bus = await open();
      for (const wrong of ["", "a b", "a..b", "a.>.b", ">.a"]) {
        expect(() => bus.subscribe(wrong, () => undefined)).toThrow("can be subscribed");
      }
    });
  });
}
