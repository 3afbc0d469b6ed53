import { afterEach, expect, test } from "bun:test";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { type Bus, openBus } from "../../src/bus/index.ts";
import {
  ControlSubscriber,
  decodeReceipt,
  REPLY_HEADER,
  type Receipt,
} from "../../src/control/index.ts";
import { seededRandom, stringifyJson, systemClock } from "../../src/core/index.ts";
import { describeNats, NatsServer, waitFor } from "../support/index.ts";
import { LIMITS, PlaneKit } from "./plane-kit.ts";

const PIN = { type: "Cache", block_hashes: [1], pin: true };
const SUBJECT = "kv-control-w1";
const STREAM = "COMMANDS";

/** An agent's control plane on a stream of a real broker, with a router. */
class KeptStage {
  readonly kit = new PlaneKit();
  readonly receipts: Receipt[] = [];
  readonly lines: string[] = [];
  readonly #server: NatsServer;
  readonly #buses: Bus[] = [];
  readonly #router: Bus;
  #subscriber: ControlSubscriber | null = null;
  #sent = 0;

  private constructor(server: NatsServer) {
    this.#server = server;
    this.#router = this.#open();
    this.#router.subscribe("answers", ({ data }) => {
      this.receipts.push(decodeReceipt(data, null)!);
    });
  }

  static async open(): Promise<KeptStage> {
    const server = await NatsServer.start({ jetStream: true });
    const stage = new KeptStage(server);
    stages.push(stage);
    await stage.asOperator(async (nc) => {
      await (await jetstreamManager(nc)).streams.add({ name: STREAM, subjects: [SUBJECT] });
    });
    expect(await stage.#router.connected(5_000)).toBe(true);
    return stage;
  }

  #open(): Bus {
    const bus = openBus({
      ...{ url: this.#server.tcpUrl, name: "kept", clock: systemClock, random: seededRandom(1) },
      log: (_level, message) => void this.lines.push(message),
    });
    this.#buses.push(bus);
    return bus;
  }

  async asOperator(use: (nc: Awaited<ReturnType<typeof connect>>) => Promise<void>) {
    const nc = await connect({ servers: `127.0.0.1:${this.#server.tcpPort}`, reconnect: false });
    await use(nc).finally(() => nc.close());
  }

  listen(): void {
    this.#subscriber = new ControlSubscriber({
      ...{ bus: this.#open(), plane: this.kit.plane, events: this.kit.events },
      ...{ workerId: "w1", incarnation: 7n, version: "1.2.3", role: "purge", issuer: "nats" },
      ...{ publishReceipts: false, publishEvents: false, commandStream: STREAM },
    });
  }

  get state() {
    return this.#subscriber!.streamState!;
  }

  async leave(): Promise<void> {
    await this.#subscriber?.[Symbol.asyncDispose]();
    this.#subscriber = null;
  }

  async publish(...commands: object[]): Promise<void> {
    for (const command of commands) {
      const options = { id: `m${this.#sent++}`, timeoutMs: 5_000 };
      const body = new TextEncoder().encode(stringifyJson(command));
      const headers = { [REPLY_HEADER]: "answers" };
      const { kind } = await this.#router.durable!.publish(SUBJECT, body, { ...options, headers });
      expect(kind).toBe("acknowledged");
    }
  }

  async close(): Promise<void> {
    await this.leave();
    for (const bus of this.#buses) await bus.close(100);
    await this.#server[Symbol.asyncDispose]();
  }
}

const stages: KeptStage[] = [];
afterEach(async () => {
  for (const stage of stages.splice(0)) await stage.close();
});

describeNats("commands in a stream", () => {
  test("are redelivered after a temporary refusal, before later ones", async () => {
    const stage = await KeptStage.open();
    const { kit } = stage;
    kit.limits = { ...LIMITS, commandsPerSecond: 1, commandsBurst: 1 };
    await stage.publish({ ...PIN, id: "a" }, { ...PIN, id: "b" }, { ...PIN, pin: false, id: "c" });
    stage.listen();
    for (const refusals of [1, 2]) {
      await waitFor(() => kit.plane.stats().refused.rate_limited === refusals, 15_000);
      kit.clock.advance(1_000);
    }
    await waitFor(() => stage.receipts.length === 3, 15_000);
    // The refusals in between get no answer.
    expect(stage.receipts.map(({ id, status }) => `${id} ${status}`)).toEqual([
      ...["a ok", "b ok", "c ok"],
    ]);
    expect(kit.lifecycle.calls).toEqual(["pin nats ttl=null", "pin nats ttl=null", "unpin nats"]);
    expect(stage.state).toMatchObject({ handled: 3, givenUp: 0 });
  });

  test("are answered on their last delivery", async () => {
    const stage = await KeptStage.open();
    stage.kit.limits = { ...LIMITS, commandsPerSecond: 1, commandsBurst: 0 };
    await stage.publish({ ...PIN, id: "a" }, { type: "Nonsense", id: "b" });
    await stage.asOperator(async (nc) => {
      const consumer = { durable_name: "hearth-w1", filter_subject: SUBJECT, max_ack_pending: 1 };
      const waits = { ack_wait: 10_000e6, max_deliver: 10, ack_policy: AckPolicy.Explicit };
      await (await jetstreamManager(nc)).consumers.add(STREAM, { ...consumer, ...waits });
      const own = await jetstream(nc).consumers.get(STREAM, "hearth-w1");
      for (let nth = 0; nth < 9; nth++) (await own.next())!.nak();
    });
    stage.listen();
    await waitFor(() => stage.receipts.length === 2, 15_000);
    const words = stage.receipts.map(({ id, reason }) => `${id} ${reason!.split(":")[0]}`);
    expect(words).toEqual(["a rate_limited", "b unknown_type"]);
    await waitFor(() => stage.state.handled === 1);
    expect(stage.state.givenUp).toBe(1);
    expect(stage.lines.filter((line) => line.includes("every delivery failed"))).toHaveLength(1);
  });

  test("are counted once, also without an id and if the agent stops in between", async () => {
    const stage = await KeptStage.open();
    const { kit } = stage;
    kit.lifecycle.isHolding = true;
    stage.listen();
    await stage.publish(PIN, PIN);
    await waitFor(() => kit.lifecycle.held.length === 1);
    // Closing does not wait for the command in progress.
    await stage.leave();
    kit.lifecycle.isHolding = false;
    kit.lifecycle.held[0]!.finish();
    stage.listen();
    await waitFor(() => stage.receipts.length === 2, 15_000);
    expect(stage.receipts.map(({ duplicate }) => duplicate)).toEqual([true, undefined]);
    expect(stage.receipts[0]!.id).toStartWith(`stream/${STREAM}/1/`);
    expect(kit.lifecycle.pins.get("nats/1")).toBe(2);
    expect(kit.lifecycle.calls).toHaveLength(2);
  });
});
