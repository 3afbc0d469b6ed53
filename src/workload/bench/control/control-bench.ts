import { type Bus, type BusMessage, openBus } from "../../../bus/index.ts";
import { type ControlClient, connectControl, unpin } from "../../../control/client/index.ts";
import { decodeBody, encodeBody, JSON_TYPE, MSGPACK_TYPE } from "../../../control/index.ts";
import { HearthError, sleep, systemClock, systemRandom } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import { type Carrier, type PrivateAgent, PrivateBroker } from "../../replay/index.ts";
import { median, quantile } from "../measure.ts";
import { ControlHost, hashOf, loopUsOf } from "./agent-host.ts";
import { benchPrune } from "./prune-bench.ts";

export interface ControlBenchOptions {
  /** URL of the NATS server; null for a private nats-server. */
  readonly natsUrl: string | null;
  /** Transport of the private server. */
  readonly carrier: Carrier;
  readonly encoding: Encoding;
  readonly hashes: number;
  readonly inFlight: number;
  /** Run the agent without SSD tier and ledger, so that nothing is durable. */
  readonly ramOnly: boolean;
  readonly seconds: number;
  readonly rounds: number;
  /** Number of blocks to prune by command; 0 for no prune. */
  readonly pruneBlocks: number;
  readonly pruneRounds: number;
  readonly signal: AbortSignal;
  readonly onProgress: (what: string) => void;
}

const CONNECT_MS = 10_000;
const WORKER_BYTES = 6;

/** Measures commands and their receipts over a NATS server, and a prune by command. */
export async function benchControl(native: Native, options: ControlBenchOptions) {
  const { carrier, pruneBlocks, pruneRounds, signal } = options;
  await using own = options.natsUrl === null ? await startBroker(carrier, signal) : null;
  const natsUrl = own?.url ?? options.natsUrl!;
  const parts = { clock: systemClock, random: systemRandom };
  await using bus = openBus({ url: natsUrl, name: "hearth bench", ...parts });
  if (!(await bus.connected(CONNECT_MS))) {
    throw new HearthError("DEADLINE", `no connection to ${natsUrl}: ${bus.state.why}`);
  }
  // Other agents may use the same server, so the worker id must be unique.
  const random = crypto.getRandomValues(new Uint8Array(WORKER_BYTES)).toHex();
  const workerId = `bench-${random}`;
  await using client = connectControl({ bus, issuer: "bench" });
  const common = { ...options, bus, client, natsUrl, workerId };
  const commands = await benchCommands(native, common);
  const beside = { rounds: pruneRounds, blocks: pruneBlocks };
  const pruned = pruneBlocks === 0 ? {} : await benchPrune(native, { ...common, ...beside });
  const { commands_per_s, p50_us, p99_us, ...rest } = commands;
  return {
    ...{ commands_per_s, p50_us, p99_us },
    ...pruned,
    ...rest,
    prune_blocks: pruneBlocks,
    prune_rounds: pruneBlocks === 0 ? 0 : pruneRounds,
    carrier: new URL(natsUrl.split(",")[0]).protocol.slice(0, -1),
  };
}

function startBroker(carrier: Carrier, signal: AbortSignal): Promise<PrivateBroker> {
  const program = PrivateBroker.find();
  if (program !== null) return PrivateBroker.start(program, signal, carrier);
  throw new HearthError("UNSUPPORTED", "nats-server is not installed", {
    fix: "apt-get install nats-server, or name a server with --nats",
  });
}

interface CommandBenchOptions extends Omit<ControlBenchOptions, "natsUrl"> {
  readonly bus: Bus;
  readonly client: ControlClient;
  readonly natsUrl: string;
  readonly workerId: string;
}

const BLOCK_BYTES = 4_096;
/** Bytes of each block's file on SSD. */
const FILE_BYTES = 2 * BLOCK_BYTES;
const GROUPS_A_LANE = 2;
/**
 * RAM and SSD hold this many times the blocks of the benchmark, because pins may protect at most
 * half of the room.
 */
const ROOM = 4;
const WARM_UP_MS = 1_000;
const PAGE = 1_000;

/**
 * Sends commands to an agent at full load. Afterwards its pins must equal those that the receipts
 * reported.
 */
async function benchCommands(native: Native, options: CommandBenchOptions) {
  const { client, natsUrl, workerId, hashes, inFlight, ramOnly, rounds, signal } = options;
  const groups = Array.from({ length: inFlight * GROUPS_A_LANE }, (_, group) =>
    Array.from({ length: hashes }, (_, at) => hashOf(group * hashes + at)),
  );
  const blocks = groups.length * hashes;
  await using host = await ControlHost.start(native, {
    ...{ natsUrl, workerId, signal },
    blocksMax: blocks * 2,
    ramBytes: Math.max(2 ** 24, blocks * BLOCK_BYTES * ROOM),
    ssdBytes: ramOnly ? null : Math.max(2 ** 26, blocks * FILE_BYTES * ROOM),
  });
  await host.store({
    count: blocks,
    // Each group of blocks is a separate prompt.
    parentOf: (block) => (block % hashes === 0 ? null : block - 1),
    blockBytes: BLOCK_BYTES,
    onProgress: (stored) => options.onProgress(`${stored} of ${blocks} blocks stored`),
  });
  if (!ramOnly) await host.onSsd(blocks);
  await answers(client, workerId, signal);
  using load = new CommandLoad({ ...options, groups, durable: !ramOnly });
  options.onProgress("commands, warming up");
  let receipts = (await load.run(WARM_UP_MS, signal)).receipts;
  const figures: LoadFigures[] = [];
  const before = await cpuOf(host.agent);
  for (let round = 1; round <= rounds; round++) {
    options.onProgress(`commands, round ${round} of ${rounds}`);
    figures.push(await load.run(options.seconds * 1_000, signal));
  }
  const after = await cpuOf(host.agent);
  const counted = figures.reduce((sum, round) => sum + round.receipts, 0);
  receipts += counted;
  const { encoding, seconds } = options;
  return {
    ...ratesOf(figures),
    ...{ hashes, in_flight: inFlight, encoding, durable: !ramOnly, rounds, seconds, receipts },
    /** Number of pins at the end; the agent's own list was compared with it. */
    pins_standing: await checkPins(host.agent, load.standing(), hashes),
    /**
     * Processor time of the agent per command: of all its threads, and of its event loop, in
     * microseconds.
     */
    agent_cpu_us: Math.round((after.allUs - before.allUs) / counted),
    agent_loop_us: Math.round((after.loopUs - before.loopUs) / counted),
  };
}

function ratesOf(rounds: readonly LoadFigures[]) {
  const us = (q: number) => median(rounds.map(({ ns }) => quantile(ns, q))) / 1_000;
  return {
    commands_per_s: Math.round(median(rounds.map(({ receipts, seconds }) => receipts / seconds))),
    p50_us: Math.round(us(0.5)),
    p99_us: Math.round(us(0.99)),
  };
}

/** Waits until the agent answers commands. */
async function answers(client: ControlClient, workerId: string, signal: AbortSignal) {
  const sent = await client.send(workerId, unpin([hashOf(0)]), { signal });
  if (sent.kind !== "receipt") throw new HearthError("DEADLINE", `the agent: ${sent.why}`);
}

/**
 * Returns the processor time of the agent so far in microseconds: of all threads, and of its event
 * loop.
 */
async function cpuOf(agent: PrivateAgent): Promise<{ allUs: number; loopUs: number }> {
  const found = /^hearth_cpu_seconds_total (\S+)$/m.exec(await agent.metrics());
  return { allUs: Number(found?.[1]) * 1e6, loopUs: loopUsOf(agent) };
}

interface PinsPage {
  readonly pins: readonly { readonly owner: string; readonly blocks: number }[];
  readonly next: number | null;
}

/**
 * Returns the number of pins in the agent's list. Throws INTERNAL if they differ from those that
 * the receipts reported.
 */
async function checkPins(agent: PrivateAgent, standing: readonly number[], hashes: number) {
  const found = new Array<number>(OWNERS).fill(0);
  for (let after: number | null = 0; after !== null; ) {
    const page: PinsPage = await agent.get(`/v1/pins?limit=${PAGE}&after=${after}`);
    for (const { owner, blocks } of page.pins) {
      const at = found.findIndex((_, number) => ownerName(number) === owner);
      if (at >= 0 && blocks === hashes) found[at]++;
      else throw new HearthError("INTERNAL", `a pin of ${owner} on ${blocks} blocks is not ours`);
    }
    after = page.next;
  }
  for (const [owner, pins] of standing.entries()) {
    if (found[owner] === pins) continue;
    const what = `${pins} pins of ${ownerName(owner)} were answered, ${found[owner]} stand`;
    throw new HearthError("INTERNAL", what);
  }
  return standing.reduce((sum, pins) => sum + pins, 0);
}

export type Encoding = "json" | "msgpack";

interface CommandLoadOptions {
  readonly bus: Bus;
  readonly workerId: string;
  /**
   * Number of concurrent commands. Each names a group of blocks that no other command uses at that
   * time.
   */
  readonly inFlight: number;
  /** Engine hashes of the blocks, in at least `inFlight` groups. */
  readonly groups: readonly (readonly bigint[])[];
  readonly encoding: Encoding;
  /** Whether receipts must report the pins as durable. */
  readonly durable: boolean;
}

/** Results of one period of load. */
interface LoadFigures {
  readonly receipts: number;
  readonly seconds: number;
  /** Nanoseconds per command, from encoding it until its receipt was checked. */
  readonly ns: readonly number[];
}

const OWNERS = 8;
const ISSUERS = 8;
const SILENCE_MS = 30_000;
const INBOX_DIGITS = 8;
const HEADERS = {
  json: { "Content-Type": JSON_TYPE },
  msgpack: { "Content-Type": MSGPACK_TYPE },
};
const utf8 = new TextEncoder();
const LIMITS = { bytesMax: 2 ** 20, depthMax: 16, itemsMax: 65_536, valuesMax: 2 ** 24 };

/**
 * A sequence of commands, one at a time: pins its own groups for one owner after another and
 * removes its oldest pins.
 */
interface Lane {
  readonly groups: readonly number[];
  /**
   * `first` and the next field delimit the pins that exist; there is one position for each group
   * and owner.
   */
  first: number;
  standing: number;
}

/**
 * Sends commands that pin or unpin a group of blocks, and waits for every receipt, which must
 * report every block as done. From the start, half of all possible pins exist.
 */
class CommandLoad implements Disposable {
  readonly #options: CommandLoadOptions;
  readonly #lanes: Lane[];
  readonly #lists: readonly (string | readonly bigint[])[];
  readonly #inbox: string;
  readonly #subscription: Disposable;
  readonly #waiting = new Map<string, (message: BusMessage) => void>();
  #sent = 0;

  constructor(options: CommandLoadOptions) {
    const { bus, inFlight, groups, encoding } = options;
    this.#options = options;
    this.#lists = encoding === "json" ? groups.map((group) => group.join(",")) : groups;
    this.#lanes = Array.from({ length: inFlight }, (_, lane) => {
      const own = groups.map((_, group) => group).filter((group) => group % inFlight === lane);
      return { groups: own, first: 0, standing: 0 };
    });
    this.#inbox = `_INBOX.${crypto.getRandomValues(new Uint8Array(INBOX_DIGITS)).toHex()}`;
    const subscription = bus.subscribe(`${this.#inbox}.*`, (message) => {
      this.#waiting.get(message.subject)?.(message);
    });
    this.#subscription = { [Symbol.dispose]: () => subscription.unsubscribe() };
  }

  /** Sends commands for `ms` milliseconds; resolves when all receipts have arrived. */
  async run(ms: number, signal: AbortSignal): Promise<LoadFigures> {
    const ns: number[] = [];
    const startMs = systemClock.monotonicMs();
    const endMs = startMs + ms;
    const lanes = this.#lanes.map(async (lane, number) => {
      while (systemClock.monotonicMs() < endMs && !signal.aborted) {
        ns.push(await this.#step(lane, number));
      }
    });
    const silence = sleep(systemClock, ms + SILENCE_MS, signal).then(() => {
      throw new HearthError("DEADLINE", `${this.#waiting.size} commands were not answered`);
    });
    silence.catch(() => undefined);
    await Promise.race([Promise.all(lanes), silence]);
    return { receipts: ns.length, seconds: (systemClock.monotonicMs() - startMs) / 1_000, ns };
  }

  /** Returns the expected number of pins of each owner, according to the receipts. */
  standing(): number[] {
    const pins = new Array<number>(OWNERS).fill(0);
    for (const { first, standing } of this.#lanes) {
      for (let at = first; at < first + standing; at++) pins[at % OWNERS]++;
    }
    return pins;
  }

  [Symbol.dispose](): void {
    this.#subscription[Symbol.dispose]();
  }

  /** Sends one command of a lane and returns the nanoseconds until its receipt was checked. */
  async #step(lane: Lane, number: number): Promise<number> {
    const places = lane.groups.length * OWNERS;
    const pin = lane.standing < places / 2;
    const at = (pin ? lane.first + lane.standing : lane.first) % places;
    const group = lane.groups[Math.floor(at / OWNERS)];
    const start = Bun.nanoseconds();
    const id = `${this.#sent++}`;
    const issuer = `bench-${number % ISSUERS}`;
    const message = await this.#ask(id, this.#body(id, issuer, group, at % OWNERS, pin));
    this.#check(message, id, this.#options.groups[group].length);
    if (!pin) lane.first = (lane.first + 1) % places;
    lane.standing += pin ? 1 : -1;
    return Bun.nanoseconds() - start;
  }

  #body(id: string, issuer: string, group: number, owner: number, pin: boolean): Uint8Array {
    const list = this.#lists[group];
    if (typeof list !== "string") {
      const members = {
        type: "Cache",
        block_hashes: list,
        pin,
        id,
        issuer,
        owner: ownerName(owner),
      };
      return Uint8Array.from(encodeBody(members, MSGPACK_TYPE));
    }
    const beside = `"id":"${id}","issuer":"${issuer}","owner":"${ownerName(owner)}"`;
    return utf8.encode(`{"type":"Cache","block_hashes":[${list}],"pin":${pin},${beside}}`);
  }

  #ask(id: string, data: Uint8Array): Promise<BusMessage> {
    const { bus, workerId, encoding } = this.#options;
    const reply = `${this.#inbox}.${id}`;
    const headers = HEADERS[encoding];
    const { promise, resolve } = Promise.withResolvers<BusMessage>();
    this.#waiting.set(reply, (message) => {
      this.#waiting.delete(reply);
      resolve(message);
    });
    const outcome = bus.publish(`kv-control-${workerId}`, data, { reply, headers });
    if (outcome !== "dropped") return promise;
    throw new HearthError("LIMIT", "the bus dropped a command of the benchmark");
  }

  /** Throws INTERNAL unless the receipt reports all of the command as done. */
  #check({ data }: BusMessage, id: string, blocks: number): void {
    const receipt = this.#read(data);
    const isDone =
      receipt.id === id &&
      receipt.status === "ok" &&
      receipt.durable === this.#options.durable &&
      receipt.counts.done === blocks &&
      receipt.blocks.length === blocks &&
      receipt.blocks.every(({ outcome }) => outcome === "done");
    if (isDone) return;
    const { status, reason, counts } = receipt;
    const what = `${status} ${reason ?? ""} ${JSON.stringify(counts)}`;
    throw new HearthError("INTERNAL", `a receipt is not as it should be: ${what}`);
  }

  #read(data: Uint8Array): ReceiptParts {
    // JSON numbers lose digits of the hashes, which are not checked.
    if (this.#options.encoding === "json") return JSON.parse(Buffer.from(data).toString());
    const body = decodeBody(data, MSGPACK_TYPE, LIMITS);
    if (body.ok) return body.value as ReceiptParts;
    throw new HearthError("INTERNAL", `a receipt cannot be read: ${body.refusal.message}`);
  }
}

/** Members of a receipt that the benchmark checks. */
interface ReceiptParts {
  readonly id: string;
  readonly status: string;
  readonly durable?: boolean;
  readonly reason?: string;
  readonly counts: Readonly<Record<string, number>>;
  readonly blocks: readonly { readonly outcome: string }[];
}

function ownerName(owner: number): string {
  return `owner-${owner}`;
}
