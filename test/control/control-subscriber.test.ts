import { afterEach, describe, expect, test } from "bun:test";
import { type Bus, type BusMessage, createLocalBus, LocalHub } from "../../src/bus/index.ts";
import {
  ControlSubscriber,
  type ControlSubscriberOptions,
  decodeReceipt,
  encodeBody,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  type Receipt,
} from "../../src/control/index.ts";
import { seededRandom, systemClock } from "../../src/core/index.ts";
import { waitFor } from "../support/index.ts";
import { LIMITS, PlaneKit } from "./plane-kit.ts";

const PIN = { type: "Cache", block_hashes: [1, -2n], pin: true };
const SUBJECT = "kv-control-w1";

class Stage {
  readonly kit = new PlaneKit();
  readonly agent: Bus;
  readonly router: Bus;
  readonly subscriber: ControlSubscriber;
  readonly heard: { subject: string; receipt: Receipt | null; message: BusMessage }[] = [];

  private constructor(hub: LocalHub, options: Partial<ControlSubscriberOptions>) {
    const basics = { clock: systemClock, random: seededRandom(1) };
    this.agent = createLocalBus(hub, basics);
    this.router = createLocalBus(hub, basics);
    this.subscriber = new ControlSubscriber({
      ...{ bus: this.agent, plane: this.kit.plane, events: this.kit.events },
      ...{ workerId: "w1", incarnation: 7n, version: "1.2.3", role: "purge", issuer: "nats" },
      ...{ publishReceipts: false, publishEvents: false, ...options },
    });
    this.#listen("answers");
  }

  static async open(options: Partial<ControlSubscriberOptions> = {}, payloadBytesMax?: number) {
    const stage = new Stage(new LocalHub(payloadBytesMax), options);
    await Promise.all([stage.agent.connected(5_000), stage.router.connected(5_000)]);
    await Promise.all([stage.agent.flush(5_000), stage.router.flush(5_000)]);
    open.push(stage);
    return stage;
  }

  #listen(subject: string): void {
    this.router.subscribe(subject, (message) => {
      const type = message.headers["Content-Type"] ?? null;
      this.heard.push({ subject, receipt: decodeReceipt(message.data, type), message });
    });
  }

  async listen(subject: string): Promise<void> {
    this.#listen(subject);
    await this.router.flush(5_000);
  }

  send(
    data: Uint8Array,
    headers: Record<string, string> = {},
    subject = SUBJECT,
    reply: string | null = "answers",
  ) {
    this.router.publish(subject, data, reply === null ? { headers } : { headers, reply });
  }

  async receipts(count: number): Promise<Receipt[]> {
    await waitFor(() => this.heard.length >= count);
    return this.heard.map(({ receipt }) => receipt!);
  }

  async close(): Promise<void> {
    for (const held of this.kit.lifecycle.held) held.finish();
    await this.subscriber[Symbol.asyncDispose]();
    await this.agent[Symbol.asyncDispose]();
    await this.router[Symbol.asyncDispose]();
  }
}

const open: Stage[] = [];
afterEach(async () => {
  for (const stage of open.splice(0)) await stage.close();
});

describe("commands over a bus", () => {
  test.each([
    [JSON_TYPE, {}, JSON_TYPE],
    [JSON_TYPE, { "content-type": "application/json" }, JSON_TYPE],
    [MSGPACK_TYPE, { "Content-Type": "application/msgpack" }, MSGPACK_TYPE],
    [MSGPACK_TYPE, { "CONTENT-TYPE": "application/x-msgpack" }, MSGPACK_TYPE],
    [JSON_TYPE, { Accept: "application/msgpack" }, MSGPACK_TYPE],
    [MSGPACK_TYPE, { "Content-Type": MSGPACK_TYPE, accept: "application/json" }, JSON_TYPE],
  ] as [MediaType, Record<string, string>, MediaType][])(
    "%s with %j is answered as %s",
    async (type, headers, answer) => {
      const stage = await Stage.open();
      stage.send(encodeBody(PIN, type), headers);
      const [receipt] = await stage.receipts(1);
      expect(stage.heard[0]!.message.headers["Content-Type"]).toBe(answer);
      expect(receipt).toMatchObject({ status: "ok", issuer: "nats" });
      expect(receipt!.blocks.map(({ block }) => BigInt(block))).toEqual([1n, -2n]);
    },
  );

  test("a command without a reply subject is carried out", async () => {
    const stage = await Stage.open();
    stage.send(encodeBody(PIN, JSON_TYPE), {}, SUBJECT, null);
    await waitFor(() => stage.subscriber.stats().unasked === 1);
    expect(stage.kit.lifecycle.pins.get("nats/1")).toBe(1);
  });

  test("broadcasts carry out what the configuration allows", async () => {
    const stage = await Stage.open();
    stage.send(encodeBody(PIN, JSON_TYPE), {}, "kv-control-broadcast");
    stage.send(
      encodeBody({ type: "Prune", after_block_hash: 1 }, JSON_TYPE),
      {},
      "kv-control-broadcast",
    );
    const receipts = await stage.receipts(2);
    expect(receipts.map(({ status }) => status)).toEqual(["rejected", "ok"]);
    expect(receipts[0]!.reason).toStartWith("broadcast_refused: ");
  });

  test("a publisher has the configured role", async () => {
    const stage = await Stage.open({ role: "operate" });
    stage.send(encodeBody({ type: "Flush" }, JSON_TYPE));
    expect((await stage.receipts(1))[0]!.reason).toStartWith("forbidden: ");
  });

  test(
    "an undecodable command is answered, counted and dropped; later commands are " + "served",
    async () => {
      const stage = await Stage.open({}, 4 * 2 ** 20);
      const deep = `{"type":"Flush","x":${"[".repeat(20_000)}${"]".repeat(20_000)}}`;
      for (const poison of [
        new Uint8Array(),
        new Uint8Array([0xff, 0xfe]),
        new Uint8Array(2 ** 20 + 1),
        new TextEncoder().encode(deep),
        encodeBody({ type: "Nonsense" }, JSON_TYPE),
      ]) {
        stage.send(poison);
      }
      stage.send(new Uint8Array([0xdd, 0xff, 0xff, 0xff, 0xff]), { "Content-Type": MSGPACK_TYPE });
      stage.send(encodeBody(PIN, JSON_TYPE));
      const receipts = await stage.receipts(7);
      const words = receipts.map(({ status, reason }) => reason?.split(":")[0] ?? status);
      expect(words.sort()).toEqual(
        [
          "malformed",
          "malformed",
          "malformed",
          "ok",
          "too_deep",
          "too_large",
          "unknown_type",
        ].sort(),
      );
      expect(stage.kit.plane.stats().refused).toEqual({
        malformed: 3,
        too_deep: 1,
        too_large: 1,
        unknown_type: 1,
      });
      expect(stage.agent.state.handlerFaults).toBe(0);
    },
  );

  test("a flood is bounded: commands beyond the limit are refused at once", async () => {
    const stage = await Stage.open();
    stage.kit.limits = { ...LIMITS, commandsBurst: 1_000_000 };
    stage.kit.lifecycle.isHolding = true;
    const body = encodeBody({ ...PIN, id: "same" }, JSON_TYPE);
    for (let i = 0; i < 5_000; i++) stage.send(body);
    const receipts = await stage.receipts(5_000 - 4_096);
    expect(new Set(receipts.map(({ reason }) => reason!.split(":")[0]))).toEqual(new Set(["busy"]));
    expect(stage.subscriber.stats()).toMatchObject({ waiting: 4_096, overflowed: 904 });
    stage.kit.lifecycle.held[0]!.finish();
    await stage.receipts(5_000);
    expect(stage.kit.lifecycle.pins.get("nats/1")).toBe(1);
  });

  test("a flood on the shared subject does not affect an issuer's own subject", async () => {
    const stage = await Stage.open();
    stage.kit.limits = { ...LIMITS, commandsBurst: 1_000_000 };
    stage.kit.issuers = [{ name: "router-1", role: "purge", key: null }];
    stage.subscriber.setIssuerSubjects(true);
    await stage.agent.flush(5_000);
    stage.kit.lifecycle.isHolding = true;
    const flood = encodeBody({ ...PIN, id: "same" }, JSON_TYPE);
    for (let i = 0; i < 5_000; i++) stage.send(flood, {}, SUBJECT, null);
    await waitFor(() => stage.subscriber.stats().overflowed === 5_000 - 4_096);
    stage.kit.lifecycle.isHolding = false;
    stage.send(encodeBody({ ...PIN, id: "own" }, JSON_TYPE), {}, `${SUBJECT}.router-1`);
    const [receipt] = await stage.receipts(1);
    expect(receipt).toMatchObject({ id: "own", issuer: "router-1", status: "ok" });
    stage.kit.lifecycle.held[0]!.finish();
  });

  test("a subject's rate applies before bodies are decoded, also to invalid ones", async () => {
    const stage = await Stage.open();
    // 16 issuers may share the subject.
    stage.kit.limits = { ...LIMITS, commandsPerSecond: 0, commandsBurst: 2 };
    for (let i = 0; i < 40; i++) stage.send(new Uint8Array([0x21]));
    const receipts = await stage.receipts(40);
    const words = receipts.map(({ reason }) => reason!.split(":")[0]!);
    expect(words.filter((word) => word === "malformed")).toHaveLength(32);
    expect(words.filter((word) => word === "rate_limited")).toHaveLength(8);
    expect(stage.subscriber.stats()).toMatchObject({ limited: 8 });
    expect(stage.kit.plane.stats().refused).toEqual({ malformed: 32 });
  });

  test("a receipt too large for a message omits blocks and says how many", async () => {
    const stage = await Stage.open({}, 16 * 1024);
    stage.send(encodeBody({ ...PIN, block_hashes: new Array(1_000).fill(7) }, JSON_TYPE));
    const [receipt] = await stage.receipts(1);
    expect(receipt!.counts.done).toBe(1_000);
    expect(receipt!.blocks.length).toBeGreaterThan(100);
    expect(receipt!.blocks.length + receipt!.blocks_left_out!).toBe(1_000);
  });

  test("long commands report progress on the reply subject", async () => {
    const stage = await Stage.open();
    stage.kit.lifecycle.isHolding = true;
    stage.send(encodeBody({ type: "Warm", block_keys: ["1"] }, JSON_TYPE));
    await waitFor(() => stage.kit.lifecycle.held.length === 1);
    stage.kit.clock.advance(1_000);
    stage.kit.lifecycle.held[0]!.progress(3);
    expect((await stage.receipts(1))[0]).toMatchObject({ status: "running" });
    stage.kit.lifecycle.held[0]!.finish();
    expect((await stage.receipts(2))[1]).toMatchObject({ status: "ok" });
  });

  test("receipts and events are published to their own subjects if configured", async () => {
    const stage = await Stage.open({ publishReceipts: true, publishEvents: true });
    await stage.listen("kv-control-receipts-w1");
    await stage.listen("kv-control-events-w1");
    stage.send(encodeBody({ ...PIN, id: "c" }, JSON_TYPE), {}, SUBJECT, null);
    await stage.receipts(2);
    const of = (subject: string) => stage.heard.find((heard) => heard.subject === subject)!;
    expect(of("kv-control-receipts-w1").receipt).toMatchObject({ id: "c", status: "ok" });
    const event = JSON.parse(new TextDecoder().decode(of("kv-control-events-w1").message.data));
    expect(event).toEqual({
      ...{ worker_id: "w1", incarnation: "7", sequence: 1 },
      time: new Date(stage.kit.clock.wallMs()).toISOString(),
      ...{ kind: "command", type: "Cache", issuer: "nats", id: "c", status: "ok", blocks: 2 },
    });
  });

  test("copies, events and flood answers never displace other answers", async () => {
    const stage = await Stage.open({ publishReceipts: true, publishEvents: true });
    const published: [string, boolean | undefined][] = [];
    const { agent } = stage;
    const publish = agent.publish.bind(agent);
    agent.publish = (subject, data, options) => {
      published.push([subject, options?.isSpare]);
      return publish(subject, data, options);
    };
    stage.send(encodeBody(PIN, JSON_TYPE));
    await stage.receipts(1);
    expect(published.sort()).toEqual([
      ["answers", false],
      ["kv-control-events-w1", true],
      ["kv-control-receipts-w1", true],
    ]);
    published.length = 0;
    stage.kit.limits = { ...LIMITS, commandsBurst: 0 };
    stage.send(new Uint8Array(1));
    stage.send(encodeBody(PIN, JSON_TYPE));
    await stage.receipts(3);
    expect(published).toEqual([
      ["answers", true],
      ["kv-control-receipts-w1", true],
      ["answers", true],
      ["kv-control-receipts-w1", true],
    ]);
  });

  test.each(["kv-control-w2", "kv-control-broadcast", "$JS.API.STREAM.DELETE.x"])(
    "no answer goes to %s: a receipt would be a command there",
    async (reply) => {
      const stage = await Stage.open();
      await stage.listen(reply);
      stage.send(encodeBody({ type: "RevokeLease", lease_id: "l" }, JSON_TYPE), {}, SUBJECT, reply);
      await waitFor(() => stage.subscriber.stats().unasked === 1);
      stage.send(encodeBody(PIN, JSON_TYPE));
      await stage.receipts(1);
      expect(stage.heard.map(({ subject }) => subject)).toEqual(["answers"]);
    },
  );

  test.each(["kv-events-hearth.gpu-02.0", "kv-peers-hearth", "answers", "INBOX.x"])(
    "with prefixes of inboxes no answer goes to %s, by reply or by header",
    async (reply) => {
      const stage = await Stage.open({ replyPrefixes: ["_INBOX", "_REPLY.a"] });
      await stage.listen(reply);
      stage.send(encodeBody(PIN, JSON_TYPE), {}, SUBJECT, reply);
      await waitFor(() => stage.subscriber.stats().unasked === 1);
      for (const inbox of ["_INBOX.x.1", "_INBOX_router.y", "_REPLY.a"]) {
        await stage.listen(inbox);
        stage.send(encodeBody(PIN, JSON_TYPE), {}, SUBJECT, inbox);
      }
      await stage.receipts(3);
      const heard = stage.heard.map(({ subject }) => subject);
      expect(heard).toEqual(["_INBOX.x.1", "_INBOX_router.y", "_REPLY.a"]);
    },
  );

  test("an issuer's own subject names it, once subjects of issuers are wanted", async () => {
    const stage = await Stage.open({ role: "operate" });
    stage.kit.issuers = [{ name: "router-1", role: "purge", key: null }];
    const flush = encodeBody({ type: "Flush" }, JSON_TYPE);
    const asked = await stage.router.request(`${SUBJECT}.router-1`, flush, { timeoutMs: 5_000 });
    expect(asked.kind).toBe("noResponders");
    stage.subscriber.setIssuerSubjects(true);
    await stage.agent.flush(5_000);
    stage.send(flush, {}, `${SUBJECT}.router-1`);
    stage.send(flush, {}, `${SUBJECT}.router-2`);
    stage.send(flush, {}, SUBJECT);
    const think = encodeBody({ type: "Think", block_hashes: [1], transient: false }, JSON_TYPE);
    stage.send(think, {}, "kv-control-broadcast.router-1");
    const receipts = await stage.receipts(4);
    const told = receipts.map(({ issuer, status }) => [issuer, status]);
    expect(told.sort()).toEqual([
      ["nats", "rejected"],
      ["router-1", "ok"],
      ["router-1", "ok"],
      ["router-2", "rejected"],
    ]);
    stage.subscriber.setIssuerSubjects(false);
    await stage.agent.flush(5_000);
    const gone = await stage.router.request(`${SUBJECT}.router-1`, flush, { timeoutMs: 5_000 });
    expect(gone.kind).toBe("noResponders");
  });

  test("discovery tools find it", async () => {
    const stage = await Stage.open();
    const found = await stage.router.request("$SRV.INFO.hearth-agent", new Uint8Array(), {
      timeoutMs: 5_000,
    });
    if (found.kind !== "reply") throw new Error(found.kind);
    expect(JSON.parse(new TextDecoder().decode(found.message.data))).toMatchObject({
      name: "hearth-agent",
      version: "1.2.3",
      metadata: { worker_id: "w1", incarnation: "7" },
      endpoints: [{ subject: SUBJECT }, { subject: "kv-control-broadcast" }],
    });
  });

  test("a closed subscriber accepts no commands", async () => {
    const stage = await Stage.open({ publishEvents: true });
    await stage.subscriber[Symbol.asyncDispose]();
    stage.send(encodeBody(PIN, JSON_TYPE));
    await stage.router.flush(5_000);
    await stage.agent.flush(5_000);
    expect(stage.subscriber.stats().received).toBe(0);
    expect(stage.kit.lifecycle.calls).toEqual([]);
  });
});
