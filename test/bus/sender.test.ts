import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  type BrokerConnection,
  BUS_LIMITS,
  messageBytes,
  type Outgoing,
  type PublishOutcome,
  Sender,
} from "../../src/bus/index.ts";
import { ManualClock } from "../support/index.ts";
import { FakeConnection } from "./fake-connection.ts";

const LIMITS = { ...BUS_LIMITS, queueMessages: 8, queueBytes: 2_000, windowBytes: 400 };
/** Bytes that the queue counts beyond payload and subject. */
const ENTRY = 128;

/** A plain model of the sender. */
class Model {
  readonly waiting: Outgoing[] = [];
  readonly connections: Outgoing[][] = [];
  isUp = false;
  /** Bytes on the current connection: not confirmed and not yet asked about, and asked about. */
  fresh: number[] = [];
  asked: number[] | null = null;
  payloadMax = 2 ** 20;
  dropped = 0;
  doubtful = 0;

  publish(message: Outgoing): PublishOutcome {
    const cost = (one: Outgoing) => messageBytes(one) + one.subject.length + ENTRY;
    if (messageBytes(message) > this.payloadMax) return this.drop();
    if (this.isUp && this.waiting.length === 0 && !this.isFull) return this.send(message);
    const bytes = this.waiting.reduce((sum, one) => sum + cost(one), 0);
    const fits = this.waiting.length < LIMITS.queueMessages && bytes + cost(message) <= 2_000;
    if (!fits) return this.drop();
    this.waiting.push(message);
    return "queued";
  }

  get isFull(): boolean {
    const all = [...this.fresh, ...(this.asked ?? [])];
    return all.reduce((sum, one) => sum + one, 0) >= LIMITS.windowBytes;
  }

  attach(payloadMax: number): void {
    this.isUp = true;
    this.payloadMax = payloadMax;
    this.connections.push([]);
    this.drain();
  }

  detach(): void {
    if (this.isUp) this.doubtful += this.fresh.length + (this.asked?.length ?? 0);
    this.isUp = false;
    this.fresh = [];
    this.asked = null;
  }

  answer(): void {
    if (this.asked === null) return;
    this.asked = null;
    this.ask();
    this.drain();
  }

  private drop(): "dropped" {
    this.dropped++;
    return "dropped";
  }

  private send(message: Outgoing): "sent" {
    this.connections.at(-1)!.push(message);
    this.fresh.push(messageBytes(message));
    this.ask();
    return "sent";
  }

  private ask(): void {
    const bytes = this.fresh.reduce((sum, one) => sum + one, 0);
    if (this.asked !== null || bytes < LIMITS.windowBytes / 4) return;
    this.asked = this.fresh;
    this.fresh = [];
  }

  private drain(): void {
    while (this.isUp && this.waiting.length > 0 && !this.isFull) {
      const message = this.waiting.shift()!;
      if (messageBytes(message) > this.payloadMax) this.drop();
      else this.send(message);
    }
  }
}

type Step =
  | { readonly do: "publish"; readonly bytes: number; readonly hasHeader: boolean }
  | { readonly do: "attach"; readonly payloadMax: number }
  | { readonly do: "detach" | "answer" };

const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant("publish" as const),
      bytes: fc.oneof(fc.nat(60), fc.nat(700)),
      hasHeader: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant("attach" as const),
      payloadMax: fc.constantFrom(100, 500, 1_000),
    }),
  },
  { weight: 1, arbitrary: fc.constant({ do: "detach" as const }) },
  { weight: 3, arbitrary: fc.constant({ do: "answer" as const }) },
);

describe("the sender", () => {
  test("behaves as the model for arbitrary operations", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const model = new Model();
        const lines: string[] = [];
        const sender = new Sender(new ManualClock(), LIMITS, (_, line) => void lines.push(line));
        const connections: FakeConnection[] = [];
        for (const [at, one] of steps.entries()) {
          if (one.do === "publish") {
            const data = new Uint8Array(one.bytes);
            const headers = one.hasHeader ? { a: "b" } : null;
            const message = { subject: `s${at}`, data, reply: null, headers };
            expect(sender.publish(message)).toBe(model.publish(message));
          } else if (one.do === "attach") {
            if (model.isUp) continue;
            const connection = new FakeConnection(one.payloadMax);
            connections.push(connection);
            sender.attach(connection);
            model.attach(one.payloadMax);
          } else if (one.do === "detach") {
            sender.detach();
            model.detach();
          } else {
            if (model.isUp) connections.at(-1)!.answer();
            await Promise.resolve();
            if (model.isUp) model.answer();
          }
          expect(sender.queuedMessages).toBe(model.waiting.length);
          expect([sender.dropped, sender.doubtful]).toEqual([model.dropped, model.doubtful]);
          expect(connections.map(({ published }) => published)).toEqual(model.connections);
        }
        const sent = connections.flatMap(({ published }) =>
          published.map(({ subject }) => subject),
        );
        expect(new Set(sent).size).toBe(sent.length);
        expect(sender.sent).toBe(sent.length);
        sender.close();
        expect(sender.queuedMessages + sender.queuedBytes).toBe(0);
      }),
      { seed: 4_222, numRuns: 500 },
    );
  });

  test("best-effort messages get half of the queue, in messages and in bytes", () => {
    for (const limits of [
      LIMITS,
      { ...LIMITS, queueMessages: 1_000, queueBytes: 8 * (ENTRY + 2) },
    ]) {
      const sender = new Sender(new ManualClock(), limits, () => undefined);
      const publish = (isSpare: boolean) => {
        const message = { subject: "a", data: new Uint8Array(1), reply: null, headers: null };
        return sender.publish(message, isSpare);
      };
      expect(Array.from({ length: 6 }, () => publish(true))).toEqual([
        ...Array(4).fill("queued"),
        ...Array(2).fill("dropped"),
      ]);
      expect(Array.from({ length: 5 }, () => publish(false))).toEqual([
        ...Array(4).fill("queued"),
        "dropped",
      ]);
      expect([sender.queuedMessages, sender.dropped]).toEqual([8, 3]);
      sender.close();
    }
  });

  test("a message that the client library rejects is dropped, and later ones are sent", () => {
    const sender = new Sender(new ManualClock(), LIMITS, () => undefined);
    const message = (subject: string) => ({ subject, data: new Uint8Array(), reply: null });
    for (const subject of ["a", "refused.by.client", "b"]) {
      expect(sender.publish({ ...message(subject), headers: null })).toBe("queued");
    }
    const connection = new FakeConnection();
    sender.attach(connection satisfies BrokerConnection);
    expect(connection.published.map(({ subject }) => subject)).toEqual(["a", "b"]);
    expect([sender.sent, sender.dropped]).toEqual([2, 1]);
  });
});
