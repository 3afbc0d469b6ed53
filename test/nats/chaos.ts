import { BUS_LIMITS, type Bus, openBus } from "../../src/bus/index.ts";
import { connectControl } from "../../src/control/client/index.ts";
import { type Random, randomBelow, seededRandom, systemClock } from "../../src/core/index.ts";
import { NatsServer } from "../support/nats.ts";
import { waitFor } from "../support/wait.ts";
import { ChaosBus } from "./chaos-bus.ts";
import { type Actor, flowsOf, PROMPTS, SESSIONS } from "./flows.ts";
import { Host, type Metrics } from "./host.ts";
import { OnceSender } from "./once-sender.ts";
import { compareAudit, Oracle, readAudit } from "./oracle.ts";
import { POISON_KINDS, Poisoner } from "./poison.ts";
import { ReadLog } from "./read-log.ts";
import { type StormLog, startAgain, storm } from "./storm.ts";
import { verifyHolds } from "./verify.ts";

export const CARRIERS = ["tcp", "ws"] as const;
export type Carrier = (typeof CARRIERS)[number];

export interface ChaosOptions {
  readonly executable: string;
  readonly folder: string;
  readonly kills: number;
  readonly seed: number;
  /** How the agent is connected; routers come both ways. */
  readonly carrier: Carrier;
  /** How long reads are measured without kills; half of it before them, half after. */
  readonly calmMs: number;
  onProgress(text: string): void;
}

export interface ChaosResult {
  readonly oracle: Oracle;
  readonly log: StormLog;
  readonly figures: ChaosFigures;
}

/** Counts; memory in MiB; times in the units of their names. */
export interface ChaosFigures {
  readonly commands_acknowledged: number;
  readonly retried: number;
  readonly duplicates_sent: number;
  readonly duplicates_answered: number;
  readonly poison_sent: number;
  readonly poison_answered: number;
  readonly poison_counted: number;
  readonly p50_calm_us: number;
  readonly p50_chaos_us: number;
  readonly p99_calm_us: number;
  readonly p99_chaos_us: number;
  readonly reads: number;
  readonly dropped_messages: number;
  readonly agent_rss_start_mb: number;
  readonly agent_rss_max_mb: number;
}

const WORKER = "chaos-1";
const MAX_PAYLOAD = "8MB";
/** Messages that the bus of an agent queues while disconnected; a full queue must be reported. */
const AGENT_QUEUE = BUS_LIMITS.queueMessages;
const WARM_UP_MS = 4_000;
const POISON_MS = 200;
const ONCE_MS = 200;
const MEMORY_MS = 5_000;
const PATIENCE_MS = 60_000;
/** Clients come back at once: it is the agent's return that is measured. */
const CLIENT_LIMITS = { retryMinMs: 50, retryMaxMs: 500 };

/** A run from its start to its end, in parts that follow each other. */
export class Chaos implements AsyncDisposable {
  readonly oracle = new Oracle();
  readonly #options: ChaosOptions;
  readonly #random: Random;
  readonly #server: NatsServer;
  readonly #host: Host;
  readonly #stop = new AbortController();
  readonly #buses: Bus[] = [];
  readonly #shaken: ChaosBus[] = [];
  readonly #tally = { commands: 0, asked: 0 };
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #poisoner: Poisoner;
  #reads: ReadLog | null = null;
  #rssStart = 0;
  #rssMax = 0;

  private constructor(options: ChaosOptions, server: NatsServer, host: Host) {
    this.#options = options;
    this.#random = seededRandom(options.seed);
    this.#server = server;
    this.#host = host;
    this.#poisoner = new Poisoner(this.#open(server.tcpUrl, "poison"), WORKER, this.#random);
  }

  static async start(options: ChaosOptions): Promise<Chaos> {
    const server = await NatsServer.start({ maxPayload: MAX_PAYLOAD });
    try {
      const { executable, folder, carrier } = options;
      const nats = { url: server[`${carrier}Url`] };
      const host = await Host.start({ executable, folder, worker: WORKER, nats });
      await host.store(...PROMPTS, ...SESSIONS);
      return new Chaos(options, server, host);
    } catch (thrown) {
      await server[Symbol.asyncDispose]();
      throw thrown;
    }
  }

  async run(): Promise<ChaosResult> {
    const { kills, calmMs, onProgress } = this.#options;
    this.#reads = new ReadLog(this.#host.socketPath);
    await this.#poisonAlone();
    const flows = this.#startTraffic();
    await Bun.sleep(WARM_UP_MS);
    this.#rssStart = await this.#resident();
    onProgress("calm before");
    await this.#calm(calmMs / 2);
    this.#reads.enter("chaos");
    const log = await storm({
      ...{ server: this.#server, kills, random: this.#random, connection: `hearth ${WORKER}` },
      answers: () => this.oracle.acknowledged.size,
      onKill: (done) => onProgress(`${done} of ${kills} kills`),
    });
    onProgress("calm after");
    await this.#calm(calmMs / 2);
    this.#reads.enter("other");
    onProgress("what came of it");
    await this.#endTraffic(flows);
    const metrics = await this.#accounted();
    await this.#fullQueue();
    const dropped = (await this.#host.metrics()).dropped;
    await verifyHolds(this.#host, this.oracle);
    const reads = this.#reads;
    await reads[Symbol.asyncDispose]();
    this.#judgeReads(reads);
    await this.#host.stop("SIGTERM");
    const poisonCounted = await this.#audit(metrics);
    return { oracle: this.oracle, log, figures: this.#figures(metrics, dropped, poisonCounted) };
  }

  /** With nothing else under way each is answered, and counted. */
  async #poisonAlone(): Promise<void> {
    const bus = this.#buses[0]!;
    if (!(await bus.connected(PATIENCE_MS))) throw new Error("the broker cannot be reached");
    const isThere = async () => (await this.#host.metrics()).sum("hearth_bus_connected") === 1;
    await waitFor(isThere, PATIENCE_MS, "the agent");
    for (let nth = 0; nth < POISON_KINDS * 2; nth++) this.#poisoner.one();
    const isAnswered = () => this.#poisoner.answered === this.#poisoner.sent;
    await waitFor(isAnswered, PATIENCE_MS, "an answer to each poison");
    const { refused, received } = await this.#host.metrics();
    const { sent } = this.#poisoner;
    if (sent !== POISON_KINDS * 2) this.oracle.find("odd", `${sent} poisons could be sent`);
    if (refused === sent && received === sent) return;
    this.oracle.find("lost", `of ${sent} poisons ${received} came and ${refused} were refused`);
  }

  #startTraffic(): Promise<void>[] {
    const { tcpUrl, wsUrl } = this.#server;
    const flows = [tcpUrl, wsUrl].flatMap((url, nth) => flowsOf(this.#actor(url, nth), nth));
    const once = new OnceSender(this.#shake(tcpUrl, "numbered"), WORKER, this.oracle);
    this.#timers.push(setInterval(() => this.#poisoner.one(), POISON_MS));
    this.#timers.push(setInterval(() => once.one(), ONCE_MS));
    this.#timers.push(setInterval(() => void this.#resident(), MEMORY_MS));
    // One that fails is seen at the end; until then it must not end the process.
    for (const flow of flows) flow.catch(() => undefined);
    return flows;
  }

  #actor(url: string, nth: number): Actor {
    const name = nth === 0 ? "router-tcp" : "router-ws";
    const bus = this.#shake(url, name);
    const client = connectControl({ bus, issuer: name, encoding: nth === 0 ? "json" : "msgpack" });
    const { oracle } = this;
    const random = seededRandom(this.#random.u32());
    const own = { name, client, oracle, random, tally: this.#tally };
    return { ...own, host: this.#host, signal: this.#stop.signal };
  }

  /** A connection of the harness's own. */
  #open(url: string, name: string): Bus {
    const random = seededRandom(this.#random.u32());
    const limits = CLIENT_LIMITS;
    const bus = openBus({ url, name: `chaos ${name}`, clock: systemClock, random, limits });
    this.#buses.push(bus);
    return bus;
  }

  #shake(url: string, name: string): ChaosBus {
    const bus = new ChaosBus(this.#open(url, name), seededRandom(randomBelow(this.#random, 1e9)));
    this.#shaken.push(bus);
    return bus;
  }

  async #calm(ms: number): Promise<void> {
    this.#reads!.enter("calm");
    await Bun.sleep(ms);
  }

  /** MiB. */
  async #resident(): Promise<number> {
    const metrics = await this.#host.metrics();
    const mb = Math.round(metrics.sum("hearth_resident_bytes") / 2 ** 20);
    this.#rssMax = Math.max(this.#rssMax, mb);
    return mb;
  }

  async #endTraffic(flows: readonly Promise<void>[]): Promise<void> {
    this.#stop.abort();
    for (const timer of this.#timers.splice(0)) clearInterval(timer);
    await Promise.all(flows);
    for (const bus of this.#shaken) {
      if (!(await bus.quiet(PATIENCE_MS))) throw new Error("late copies cannot be sent");
    }
    await this.#buses[0]!.flush(PATIENCE_MS);
  }

  /** Of every message that came it is known what became of it: carried out, refused, or known. */
  async #accounted(): Promise<Metrics> {
    let metrics = await this.#host.metrics();
    const isAccounted = async () => {
      const before = metrics.received;
      metrics = await this.#host.metrics();
      const { received, carriedOut, refused, duplicates } = metrics;
      return received === before && received === carriedOut + refused + duplicates;
    };
    await waitFor(isAccounted, PATIENCE_MS).catch(() => {
      const { received, carriedOut, refused, duplicates } = metrics;
      const sums = `${carriedOut} carried out, ${refused} refused, ${duplicates} duplicates`;
      this.oracle.find("lost", `${received} messages came: ${sums}`);
    });
    const ended = metrics.sum("hearth_holds_ended_total");
    if (ended > 0) this.oracle.find("odd", `${ended} holds ended by themselves`);
    return metrics;
  }

  /** More events than may wait while there is no broker: the rest is dropped, and that is said. */
  async #fullQueue(): Promise<void> {
    const { dropped: before } = await this.#host.metrics();
    await this.#server.kill("SIGKILL");
    const isGone = async () => (await this.#host.metrics()).sum("hearth_bus_connected") === 0;
    await waitFor(isGone, PATIENCE_MS, "an agent that knows it is alone");
    const command = { type: "Cache", block_hashes: [PROMPTS[0]!.hash], retain: 0 };
    for (let nth = 0; nth < AGENT_QUEUE * 2; nth++) await this.#host.command(command);
    const { dropped } = await this.#host.metrics();
    await startAgain(this.#server);
    // Nobody waits for events: they take half of the queue at most.
    if (dropped - before === AGENT_QUEUE * 1.5) return;
    const what = `${AGENT_QUEUE * 2} events for a queue of ${AGENT_QUEUE}: ${dropped - before}`;
    this.oracle.find("odd", `${what} are said to be dropped`);
  }

  #judgeReads(reads: ReadLog): void {
    const [misses, wrong] = [reads.total("misses"), reads.total("wrong")];
    if (misses > 0) this.oracle.find("odd", `${misses} reads of blocks in RAM missed`);
    if (wrong > 0) this.oracle.find("odd", `${wrong} reads gave wrong bytes`);
    if (reads.broke) this.oracle.find("odd", "the reader ended by itself");
  }

  /** How many poisons have a line. */
  async #audit(metrics: Metrics): Promise<number> {
    const audit = readAudit(await this.#host.readAudit());
    compareAudit(this.oracle, audit);
    const of = (words: readonly string[]) =>
      words.reduce((sum, word) => sum + (audit.refused.get(word) ?? 0), 0);
    const poison = of(["malformed", "unknown_type", "too_large", "too_deep"]);
    const all = of([...audit.refused.keys()]) + audit.leftOut;
    if (all !== metrics.refused) {
      this.oracle.find("lost", `${metrics.refused} refusals are counted, ${all} in the audit log`);
    }
    const { sent, answered, accepted } = this.#poisoner;
    if (poison > sent || poison + audit.leftOut < answered) {
      this.oracle.find("lost", `${sent} poisons, ${answered} answered, ${poison} counted`);
    }
    for (const answer of accepted) this.oracle.find("odd", `poison was answered: ${answer}`);
    return poison;
  }

  #figures(metrics: Metrics, dropped: number, poisonCounted: number): ChaosFigures {
    const reads = this.#reads!;
    const sum = (of: (bus: ChaosBus) => number) =>
      this.#shaken.reduce((total, bus) => total + of(bus), 0);
    return {
      commands_acknowledged: this.oracle.acknowledged.size,
      retried:
        sum(({ published }) => published) - this.#tally.commands - this.oracle.onceAtMost.size,
      duplicates_sent: sum(({ duplicates }) => duplicates),
      duplicates_answered: metrics.duplicates,
      poison_sent: this.#poisoner.sent,
      poison_answered: this.#poisoner.answered,
      poison_counted: poisonCounted,
      p50_calm_us: reads.median("calm", "p50"),
      p50_chaos_us: reads.median("chaos", "p50"),
      p99_calm_us: reads.median("calm", "p99"),
      p99_chaos_us: reads.median("chaos", "p99"),
      reads: reads.total("reads"),
      dropped_messages:
        dropped + this.#buses.reduce((all, { state }) => all + state.droppedMessages, 0),
      agent_rss_start_mb: this.#rssStart,
      agent_rss_max_mb: this.#rssMax,
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    for (const timer of this.#timers) clearInterval(timer);
    for (const bus of [...this.#shaken, ...this.#buses]) await bus.close(0);
    await this.#reads?.[Symbol.asyncDispose]();
    await this.#host[Symbol.asyncDispose]();
    await this.#server[Symbol.asyncDispose]();
  }
}
