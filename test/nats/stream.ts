import { jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { connect } from "@nats-io/transport-node";
import { type Bus, openBus } from "../../src/bus/index.ts";
import {
  connectControl,
  newCommandId,
  pin,
  type WireCommand,
} from "../../src/control/client/index.ts";
import { randomBelow, seededRandom, stringifyJson, systemClock } from "../../src/core/index.ts";
import { NatsServer } from "../support/nats.ts";
import { waitFor } from "../support/wait.ts";
import type { Carrier } from "./chaos.ts";
import { PROMPTS } from "./flows.ts";
import { Host } from "./host.ts";
import { compareAudit, Oracle, readAudit } from "./oracle.ts";
import { startAgain } from "./storm.ts";
import { verifyHolds } from "./verify.ts";

export interface StreamOptions {
  readonly executable: string;
  readonly folder: string;
  /** How the agent is connected. */
  readonly carrier: Carrier;
  /** Published while the agent is down, and as many again while it is killed at work. */
  readonly commands: number;
  readonly seed: number;
  /** Also kills the agent at work, and waits for what it had fetched, and for its entry to go. */
  readonly thorough: boolean;
}

export interface StreamResult {
  readonly oracle: Oracle;
  readonly figures: {
    /** Kept by the stream, each once by its id. */
    readonly stream_commands: number;
    /** Copies of them, and poison, that the stream kept as well. */
    readonly stream_copies: number;
    readonly stream_poison: number;
    /** Answered through the header, since the stream uses the reply subject up. */
    readonly stream_replies: number;
  };
}

const WORKER = "chaos-2";
const STREAM = "KV_CONTROL";
const BUCKET = "kv-workers";
const SUBJECT = `kv-control-${WORKER}`;
const BUCKET_TTL_MS = 30_000;
const PATIENCE_MS = 60_000;
/** What an agent that was killed had fetched comes again after half a minute. */
const REDELIVERY_MS = 90_000;
const PUBLISH_MS = 2_000;
const REPLIES = 20;
const POISON_ONE_IN = 10;
const OWNERS = 4;

/** Commands that a broker keeps for an agent that is down: each is carried out once. */
export async function runStream(options: StreamOptions): Promise<StreamResult> {
  await using server = await NatsServer.start({ jetStream: true });
  await asOperator(server, async (nc) => {
    await (await jetstreamManager(nc)).streams.add({ name: STREAM, subjects: [SUBJECT] });
    await new Kvm(nc).create(BUCKET, { ttl: BUCKET_TTL_MS });
  });
  const { executable, folder, seed, carrier } = options;
  const url = server[`${carrier}Url`];
  const nats = { url, command_stream: STREAM, workers_bucket: BUCKET };
  await using host = await Host.start({ executable, folder, worker: WORKER, nats });
  const random = seededRandom(seed);
  const bus = openBus({ url: server.tcpUrl, name: "chaos stream", clock: systemClock, random });
  await using _bus = bus;
  const run = new StreamRun(options, server, host, bus);
  await host.store(...PROMPTS);
  await run.replies();
  await run.whileDown();
  if (options.thorough) await run.whileKilled();
  await verifyHolds(host, run.oracle);
  // What was killed may not have written all of its lines: this says what was done twice.
  compareAudit(run.oracle, readAudit(await host.readAudit()));
  await run.leaves();
  return { oracle: run.oracle, figures: run.figures() };
}

class StreamRun {
  readonly oracle = new Oracle();
  readonly #options: StreamOptions;
  readonly #server: NatsServer;
  readonly #host: Host;
  readonly #bus: Bus;
  readonly #random;
  #commands = 0;
  #copies = 0;
  #poison = 0;
  #replies = 0;

  constructor(options: StreamOptions, server: NatsServer, host: Host, bus: Bus) {
    this.#options = options;
    this.#server = server;
    this.#host = host;
    this.#bus = bus;
    this.#random = seededRandom(options.seed + 1);
  }

  figures(): StreamResult["figures"] {
    return {
      stream_commands: this.#commands,
      stream_copies: this.#copies,
      stream_poison: this.#poison,
      stream_replies: this.#replies,
    };
  }

  /** Receipts find their way by the header, before and after the broker was killed. */
  async replies(): Promise<void> {
    await this.#entry(true);
    const client = connectControl({ bus: this.#bus, issuer: "router" });
    for (let nth = 0; nth < REPLIES; nth++) {
      const command = this.#command(nth);
      if (nth === REPLIES / 2) await this.#killBroker();
      const result = await client.send(WORKER, command, { deadlineMs: PATIENCE_MS });
      const { id } = command;
      if (result.kind === "receipt" && result.receipt.id === id) this.#replies++;
      else this.oracle.find("lost", `no receipt by header: ${result.kind}`);
    }
    await client[Symbol.asyncDispose]();
  }

  /** The agent is not there, and the broker is killed before it comes back. */
  async whileDown(): Promise<void> {
    await this.#host.stop("SIGTERM");
    await this.#entry(false);
    await this.#publishAll();
    await this.#killBroker();
    await this.#host.start();
    await this.#entry(true);
    await this.#consumed();
  }

  /** The agent is killed while it works them off, and so is the broker. */
  async whileKilled(): Promise<void> {
    const before = (await this.#host.metrics()).carriedOut;
    const publishing = this.#publishAll();
    const some = before + this.#options.commands / 4;
    const isAtWork = async () => (await this.#host.metrics()).carriedOut >= some;
    await waitFor(isAtWork, PATIENCE_MS, "an agent at work");
    await this.#host.stop("SIGKILL");
    await this.#killBroker();
    await this.#host.start();
    await publishing;
    await this.#consumed();
  }

  /** The entry goes with the agent: at once where it stops, in its time where it is killed. */
  async leaves(): Promise<void> {
    await this.#host.stop(this.#options.thorough ? "SIGKILL" : "SIGTERM");
    await this.#entry(false);
  }

  /** A pin, of which it is known without a receipt: it is carried out once. */
  #command(nth: number): WireCommand & { readonly id: string } {
    const owner = `stream-${nth % OWNERS}`;
    const blocks = PROMPTS.slice(nth % 4, (nth % 4) + 2).map(({ hash }) => hash);
    const counts = this.oracle.pins.get(owner) ?? new Map<number, number>();
    this.oracle.pins.set(owner, counts);
    for (const block of blocks) counts.set(block, (counts.get(block) ?? 0) + 1);
    return { ...pin(blocks, { owner, issuer: "router" }), id: newCommandId(this.#random) };
  }

  async #publishAll(): Promise<void> {
    const bodies: Uint8Array[] = [];
    for (let nth = 0; nth < this.#options.commands; nth++) {
      const body = Buffer.from(stringifyJson(this.#command(nth)));
      bodies.push(body);
      this.#commands++;
      if (randomBelow(this.#random, 2) === 0) {
        bodies.splice(randomBelow(this.#random, bodies.length), 0, body);
        this.#copies++;
      }
      if (nth % POISON_ONE_IN === 0) {
        bodies.push(Buffer.from('{"type": "Burn", "block_hashes": ['));
        this.#poison++;
      }
    }
    for (const body of bodies) await this.#publish(body);
  }

  /** Until the broker has it. */
  async #publish(body: Uint8Array): Promise<void> {
    const id = newCommandId(this.#random);
    const isKept = async () => {
      const options = { id, timeoutMs: PUBLISH_MS };
      const outcome = await this.#bus.durable!.publish(SUBJECT, body, options);
      return outcome.kind === "acknowledged";
    };
    await waitFor(isKept, PATIENCE_MS, "a broker that keeps a command");
  }

  async #killBroker(): Promise<void> {
    await this.#server.kill("SIGKILL");
    await startAgain(this.#server);
  }

  /** Nothing is left in the stream for this agent, and nothing under way. */
  async #consumed(): Promise<void> {
    const isConsumed = () =>
      asOperator(this.#server, async (nc) => {
        const manager = await jetstreamManager(nc);
        const info = await manager.consumers.info(STREAM, `hearth-${WORKER}`);
        return info.num_pending === 0 && info.num_ack_pending === 0;
      });
    await waitFor(isConsumed, REDELIVERY_MS, "an empty stream").catch(({ message }) => {
      this.oracle.find("lost", `commands stay in the stream: ${message}`);
    });
  }

  /** Whether the bucket of workers has this one. */
  async #entry(isThere: boolean): Promise<void> {
    const bucket = this.#bus.durable!.bucket(BUCKET);
    const isSo = async () => {
      const read = await bucket.get(WORKER);
      if (read.kind === "unreachable") return false;
      if (read.kind !== "value") return !isThere;
      return isThere && Buffer.from(read.data).includes(`"id":"${WORKER}"`);
    };
    const what = `an entry of this worker that is ${isThere ? "there" : "gone"}`;
    await waitFor(isSo, PATIENCE_MS, what).catch(({ message }) => {
      this.oracle.find("odd", message);
    });
  }
}

async function asOperator<T>(
  server: NatsServer,
  use: (nc: Awaited<ReturnType<typeof connect>>) => Promise<T>,
): Promise<T> {
  const nc = await connect({ servers: `127.0.0.1:${server.tcpPort}`, reconnect: false });
  try {
    return await use(nc);
  } finally {
    await nc.close();
  }
}
