import { describe, expect, test } from "bun:test";
import type { Bus, BusMessage } from "../../src/bus/index.ts";
import { waitFor } from "../support/index.ts";
import { type Bench, bytes, text } from "./bus-bench.ts";

/** Requests and service discovery. */
export function requestsContract(bench: Bench): void {
  const { open, fresh, collect } = bench;
  describe("requests", () => {
    test("receive their own replies when many run at once", async () => {
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

    test("without a subscriber end immediately", async () => {
      const bus = await open();
      const outcome = await bus.request(fresh(), bytes("x"), { timeoutMs: 60_000 });
      expect(outcome).toEqual({ kind: "noResponders" });
    });

    test("without a reply time out, and a late reply is ignored", async () => {
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

    test("end when their signal is aborted", async () => {
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

    test("beyond the limit or too large are unreachable", async () => {
      const [asks, answers] = [await open({ requestsMax: 3 }), await open()];
      const subject = fresh();
      const { messages } = await collect(answers, subject);
      const ask = () => asks.request(subject, bytes("x"), { timeoutMs: 60_000 });
      const waiting = [ask(), ask(), ask()];
      expect(await ask()).toEqual({ kind: "unreachable" });
      await waitFor(() => messages.length === 3);
      for (const { reply } of messages) answers.publish(reply!, bytes("y"));
      expect((await Promise.all(waiting)).map(({ kind }) => kind)).toEqual(Array(3).fill("reply"));
      const large = new Uint8Array(bench.world.payloadBytesMax + 1);
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

    test("reports every instance with its endpoints and counters", async () => {
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
        bus.serve({ name, version: "1.2.3", description: "a test", metadata, endpoints });
        await bus.flush(5_000);
      }
      expect(() =>
        a.serve({ name, version: "1.0.0", description: "", metadata: {}, endpoints: [] }),
      ).toThrow("one service");
      asks.publish(subject, bytes("x"));
      asks.publish(subject, bytes("throw"));
      await waitFor(() => seen.length === 4);
      // Every instance receives every message: a broadcast stays one.
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
        description: "a test",
        endpoints: [{ name: "commands", subject }],
      });
      const all = await ask(asks, "$SRV.STATS", 2);
      const stats = all.find(({ id }) => id === pings[0].id);
      expect(stats.type).toBe("io.nats.micro.v1.stats_response");
      expect(stats.endpoints[0]).toMatchObject({ num_requests: 2, num_errors: 1, subject });
    });
  });
}
