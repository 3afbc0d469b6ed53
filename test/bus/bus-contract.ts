import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Bus, BusBasics, BusLimits, BusMessage } from "../../src/bus/index.ts";
import { systemClock, systemRandom } from "../../src/core/index.ts";
import { waitFor } from "../support/index.ts";

/** One broker and the buses on it. */
export interface BusWorld extends AsyncDisposable {
  open(basics: BusBasics): Bus;
  /** The broker dies without a word. */
  goDown(): Promise<void>;
  comeUp(): Promise<void>;
  /** What the broker takes at most; bytes. */
  readonly payloadBytesMax: number;
}

export interface LogLine {
  readonly level: string;
  readonly message: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

/** Waits short enough for tests. */
export const FAST: Partial<BusLimits> = {
  connectMs: 2_000,
  retryMinMs: 10,
  retryMaxMs: 50,
};

export function basics(limits: Partial<BusLimits> = {}, lines: LogLine[] = []): BusBasics {
  return {
    clock: systemClock,
    random: systemRandom,
    limits: { ...FAST, ...limits },
    log: (level, message, fields) => void lines.push({ level, message, fields }),
  };
}

export const bytes = (text: string) => new TextEncoder().encode(text);
export const text = (message: { readonly data: Uint8Array }) =>
  new TextDecoder().decode(message.data);

/** The promises of the port, on whatever `start` gives. */
export function busContract(name: string, start: () => Promise<BusWorld>): void {
  describe(`a bus over ${name}`, () => {
    let world: BusWorld;
    const opened: Bus[] = [];
    let subjects = 0;
    beforeAll(async () => {
      world = await start();
    });
    afterAll(async () => {
      await Promise.all(opened.map((bus) => bus.close(100)));
      await world[Symbol.asyncDispose]();
    });

    const open = async (limits: Partial<BusLimits> = {}, lines: LogLine[] = []) => {
      const bus = world.open(basics(limits, lines));
      opened.push(bus);
      expect(await bus.connected(5_000)).toBe(true);
      return bus;
    };
    const fresh = () => `test-${++subjects}`;
    /** Subscribes and waits until the broker knows. */
    const collect = async (bus: Bus, subject: string, queue?: string) => {
      const messages: BusMessage[] = [];
      const subscription = bus.subscribe(subject, (message) => void messages.push(message), queue);
      expect(await bus.flush(5_000)).toBe(true);
      return { messages, subscription };
    };

    describe("messages", () => {
      test("reach every subscriber with their bytes, and the publisher's own as well", async () => {
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

      test("carry headers of any spelling, and empty data", async () => {
        const [a, b] = [await open(), await open()];
        const subject = fresh();
        const { messages } = await collect(b, subject);
        const headers = { "Content-Type": "application/msgpack", "x-UniCode": "wörd", a: "" };
        a.publish(subject, new Uint8Array(), { headers, reply: "to.me" });
        await waitFor(() => messages.length === 1);
        expect(messages[0]).toEqual({ subject, reply: "to.me", headers, data: new Uint8Array() });
      });

      test("are the receiver's own", async () => {
        const [a, b] = [await open(), await open()];
        const subject = fresh();
        const [one, two] = [await collect(b, subject), await collect(b, subject)];
        a.publish(subject, bytes("first"));
        a.publish(subject, bytes("other"));
        await waitFor(() => one.messages.length === 2 && two.messages.length === 2);
        // Not a view on what the connection read, which would keep all of that alive.
        expect(one.messages[0]!.data.buffer.byteLength).toBe(5);
        one.messages[0]!.data.fill(0);
        expect(two.messages.map(text)).toEqual(["first", "other"]);
        expect(text(one.messages[1]!)).toBe("other");
      });

      test("come in order, thousands of them", async () => {
        const [a, b] = [await open(), await open()];
        const subject = fresh();
        const { messages } = await collect(b, subject);
        for (let at = 0; at < 5_000; at++) a.publish(subject, bytes(String(at)));
        await waitFor(() => messages.length === 5_000);
        expect(messages.map(text)).toEqual(Array.from({ length: 5_000 }, (_, at) => String(at)));
      });

      test("that are too large or go nowhere are dropped and counted", async () => {
        const [a, b] = [await open(), await open()];
        const subject = fresh();
        const { messages } = await collect(b, subject);
        expect(a.payloadBytesMax).toBe(world.payloadBytesMax);
        expect(a.publish(subject, new Uint8Array(world.payloadBytesMax + 1))).toBe("dropped");
        for (const wrong of ["", "a b", "a\r\nPUB b 0\r\n", "a.*", ">", "a..b", ".", "a\t"]) {
          expect(a.publish(wrong, bytes("x"))).toBe("dropped");
          expect(a.publish(subject, bytes("x"), { reply: wrong })).toBe("dropped");
        }
        for (const headers of [{ "a\r\nb": "c" }, { a: "b\r\nc: d" }, { "a:": "b" }, { "": "b" }]) {
          expect(a.publish(subject, bytes("x"), { headers })).toBe("dropped");
        }
        expect(a.publish(subject, new Uint8Array(world.payloadBytesMax))).toBe("sent");
        a.publish(subject, bytes("last"));
        await waitFor(() => messages.some((message) => text(message) === "last"), 15_000);
        expect(messages.at(-2)!.data.length).toBe(world.payloadBytesMax);
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

      test("of one queue share, those beside it get all", async () => {
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

      test("end at once", async () => {
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

      test("go on after a handler that throws, or rejects", async () => {
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
        // One line for all of them: poison must not flood the log.
        expect(lines.filter(({ message }) => message.includes("threw"))).toHaveLength(1);
      });

      test("to what is no subject are a bug of ours", async () => {
        const bus = await open();
        for (const wrong of ["", "a b", "a..b", "a.>.b", ">.a"]) {
          expect(() => bus.subscribe(wrong, () => undefined)).toThrow("can be subscribed");
        }
      });
    });

    describe("requests", () => {
      test("get their own answers, many at a time", async () => {
        const [asks, answers] = [await open(), await open()];
        const subject = fresh();
        answers.subscribe(subject, ({ reply, data, headers }) => {
          answers.publish(reply!, data, { headers });
        });
        await answers.flush(5_000);
        const outcomes = await Promise.all(
          Array.from({ length: 500 }, (_, at) =>
            asks.request(subject, bytes(String(at)), {
              timeoutMs: 5_000,
              headers: { at: `${at}` },
            }),
          ),
        );
        for (const [at, outcome] of outcomes.entries()) {
          if (outcome.kind !== "reply") throw new Error(outcome.kind);
          expect(text(outcome.message)).toBe(String(at));
          expect(outcome.message.headers).toEqual({ at: `${at}` });
        }
      });

      test("that nobody listens to are told so at once", async () => {
        const bus = await open();
        const outcome = await bus.request(fresh(), bytes("x"), { timeoutMs: 60_000 });
        expect(outcome).toEqual({ kind: "noResponders" });
      });

      test("that nobody answers time out, and a late answer does no harm", async () => {
        const [asks, answers] = [await open(), await open()];
        const subject = fresh();
        const { messages } = await collect(answers, subject);
        const outcome = await asks.request(subject, bytes("x"), { timeoutMs: 30 });
        expect(outcome).toEqual({ kind: "timeout" });
        await waitFor(() => messages.length === 1);
        answers.publish(messages[0]!.reply!, bytes("late"));
        answers.subscribe(subject, ({ reply }) => void answers.publish(reply!, bytes("new")));
        await answers.flush(5_000);
        const next = await asks.request(subject, bytes("y"), { timeoutMs: 5_000 });
        expect(next.kind === "reply" && text(next.message)).toBe("new");
      });

      test("are given up with their signal", async () => {
        const [asks, answers] = [await open(), await open()];
        const subject = fresh();
        const { messages } = await collect(answers, subject);
        const abort = new AbortController();
        const options = { timeoutMs: 60_000, signal: abort.signal };
        const asked = asks.request(subject, bytes("x"), options);
        await waitFor(() => messages.length === 1);
        abort.abort();
        expect(asked).rejects.toMatchObject({ code: "ABORTED" });
        await asked.catch(() => undefined);
        expect(asks.request(subject, bytes("x"), options)).rejects.toMatchObject({
          code: "ABORTED",
        });
      });

      test("beyond the cap, or too large, are unreachable", async () => {
        const [asks, answers] = [await open({ requestsMax: 3 }), await open()];
        const subject = fresh();
        const { messages } = await collect(answers, subject);
        const ask = () => asks.request(subject, bytes("x"), { timeoutMs: 60_000 });
        const waiting = [ask(), ask(), ask()];
        expect(await ask()).toEqual({ kind: "unreachable" });
        await waitFor(() => messages.length === 3);
        for (const { reply } of messages) answers.publish(reply!, bytes("y"));
        expect((await Promise.all(waiting)).map(({ kind }) => kind)).toEqual(
          Array(3).fill("reply"),
        );
        const large = new Uint8Array(world.payloadBytesMax + 1);
        expect(await asks.request(subject, large, { timeoutMs: 60_000 })).toEqual({
          kind: "unreachable",
        });
      });
    });

    describe("discovery", () => {
      const ask = async (bus: Bus, subject: string, wanted: number) => {
        const inbox = fresh();
        const { messages, subscription } = await collect(bus, inbox);
        bus.publish(subject, new Uint8Array(), { reply: inbox });
        await waitFor(() => messages.length >= wanted);
        subscription.unsubscribe();
        return messages.map((message) => JSON.parse(text(message)));
      };

      test("tells of every instance, its endpoints and its figures", async () => {
        const [a, b, asks] = [await open(), await open(), await open()];
        const [name, subject] = [fresh(), fresh()];
        const seen: string[] = [];
        for (const [bus, id] of [
          [a, "w1"],
          [b, "w2"],
        ] as const) {
          const handler = ({ data }: BusMessage) => {
            seen.push(id);
            if (text({ data }) === "throw") throw new Error("poison");
          };
          const endpoints = [{ name: "commands", subject, handler }];
          const metadata = { worker_id: id };
          bus.serve({ name, version: "1.2.3", description: "what it does", metadata, endpoints });
          await bus.flush(5_000);
        }
        expect(() =>
          a.serve({ name, version: "1.0.0", description: "", metadata: {}, endpoints: [] }),
        ).toThrow("one service");
        asks.publish(subject, bytes("x"));
        asks.publish(subject, bytes("throw"));
        await waitFor(() => seen.length === 4);
        // Each of them gets each message: a broadcast is one.
        expect(seen.sort()).toEqual(["w1", "w1", "w2", "w2"]);

        const pings = await ask(asks, `$SRV.PING.${name}`, 2);
        expect(pings.map(({ metadata }) => metadata.worker_id).sort()).toEqual(["w1", "w2"]);
        expect(new Set(pings.map(({ id }) => id)).size).toBe(2);
        expect(pings[0].type).toBe("io.nats.micro.v1.ping_response");
        const [info] = await ask(asks, `$SRV.INFO.${name}.${pings[0].id}`, 1);
        expect(info).toMatchObject({
          type: "io.nats.micro.v1.info_response",
          name,
          id: pings[0].id,
          version: "1.2.3",
          description: "what it does",
          endpoints: [{ name: "commands", subject }],
        });
        const all = await ask(asks, "$SRV.STATS", 2);
        const stats = all.find(({ id }) => id === pings[0].id);
        expect(stats.type).toBe("io.nats.micro.v1.stats_response");
        expect(stats.endpoints[0]).toMatchObject({ num_requests: 2, num_errors: 1, subject });
      });
    });

    describe("a broker that dies", () => {
      test("is waited for: what was subscribed stays, what was published waits in order", async () => {
        const lines: LogLine[] = [];
        const [a, b] = [await open({}, lines), await open()];
        const subject = fresh();
        const { messages } = await collect(b, subject);
        const statuses: string[] = [];
        a.onStatus(({ status }) => {
          statuses.push(status);
          throw new Error("a listener's own fault");
        });
        await world.goDown();
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
        await world.comeUp();
        await waitFor(() => a.state.status === "connected" && b.state.status === "connected");
        // What came back first may have spoken before the other listened: order is what holds.
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
      }, 20_000);

      test("fills a bounded queue; what does not fit is counted and told once", async () => {
        const lines: LogLine[] = [];
        const bus = await open({ queueMessages: 100, queueBytes: 2 ** 20 }, lines);
        const small = await open({ queueMessages: 1_000, queueBytes: 10_000 });
        const subject = fresh();
        const { messages } = await collect(bus, subject);
        await world.goDown();
        await waitFor(() => [bus, small].every(({ state }) => state.status === "reconnecting"));
        const outcomes = Array.from({ length: 150 }, (_, at) =>
          bus.publish(subject, bytes(String(at))),
        );
        expect(outcomes.filter((outcome) => outcome === "queued")).toHaveLength(100);
        expect(outcomes.slice(100)).toEqual(Array(50).fill("dropped"));
        for (let at = 0; at < 20; at++) small.publish(fresh(), new Uint8Array(1_000));
        expect(small.state.queuedBytes).toBeLessThanOrEqual(10_000);
        expect(small.state.queuedMessages + small.state.droppedMessages).toBe(20);
        await world.comeUp();
        await waitFor(() => messages.length === 100);
        expect(messages.map(text)).toEqual(Array.from({ length: 100 }, (_, at) => String(at)));
        expect(bus.state.droppedMessages).toBe(50);
        const told = lines.filter(({ message }) => message.includes("were dropped"));
        expect(told.map(({ fields }) => fields.messages)).toEqual([50]);
        await waitFor(() => small.state.status === "connected");
      }, 20_000);

      test("ends no service and no wait for an answer", async () => {
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
        await world.goDown();
        await waitFor(() => [asks, serves].every(({ state }) => state.status === "reconnecting"));
        await world.comeUp();
        await waitFor(() => [asks, serves].every(({ state }) => state.status === "connected"));
        expect(await asks.flush(5_000)).toBe(true);
        serves.publish(replies[0]!, bytes("at last"));
        const outcome = await asked;
        expect(outcome.kind === "reply" && text(outcome.message)).toBe("at last");
        await serves.flush(5_000);
        expect(await pinged()).toBe(id);
      }, 20_000);
    });

    describe("closing", () => {
      test("sends what waits, then drops, and says so", async () => {
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

      test("ends in time while the broker is down", async () => {
        const lines: LogLine[] = [];
        const bus = await open({}, lines);
        await world.goDown();
        await waitFor(() => bus.state.status === "reconnecting");
        bus.publish(fresh(), bytes("x"));
        const startedMs = performance.now();
        await bus.close(50);
        expect(performance.now() - startedMs).toBeLessThan(2_000);
        expect(bus.state).toMatchObject({ status: "closed", droppedMessages: 1 });
        await world.comeUp();
      });
    });
  });
}
