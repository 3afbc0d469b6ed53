import { availableParallelism } from "node:os";
import {
  assert,
  HearthError,
  selfCommand,
  stringifyJson,
  systemClock,
  unreachable,
  type WorkerId,
} from "../../../core/index.ts";
import {
  type Native,
  openLanes,
  openRdma,
  type PlainListener,
  plainListen,
  plainPull,
  plainServe,
  type Rdma,
  Region,
} from "../../../native/index.ts";
import {
  type Credentials,
  createTrust,
  type FrameHeader,
  laneShape,
  type OutgoingPull,
  type PeerAnswer,
  type PeerConnection,
  type PeerIdentity,
  type PeerRequest,
  type PeerServer,
  QuicTransport,
  RdmaTransport,
  type Served,
  StreamTransport,
  type Transport,
  type WantedBlock,
} from "../../../peers/index.ts";
import { LineProcess, linesOf } from "../line-process.ts";
import { pullAll } from "../measure.ts";
import { BareQuic } from "./bare-quic.ts";

const MIB = 2 ** 20;
const MICROS = 1e6;
/** Bytes of one read, the default of the agent's configuration. */
const READ_BYTES = 256 * 1024;
/** Idle timeout: a connection is idle while other transports are measured. */
const IDLE_MS = 3_600_000;

/** Runs one end of one transport in this process, as the lines on its standard input say. */
export async function servePeerBench(native: Native): Promise<void> {
  const lines = linesOf(Bun.stdin.stream());
  const first = await lines.next();
  if (first.done) return;
  const setup = JSON.parse(first.value) as Setup;
  const region = Region.create(native, {
    bytes: setup.regionBytes,
    hugePages: "try",
    lockMemory: "off",
  });
  // Writes every page, and gives no two blocks the same bytes.
  region.fill(0, region.bytes, setup.role === "server" ? 1n : 2n);
  await using stack = new AsyncDisposableStack();
  const side = stack.use(await sideOf(native, region, setup, stack));
  await say({ did: "start", port: side.port });
  for await (const line of lines) await obey(side, JSON.parse(line) as Order);
}

async function sideOf(
  native: Native,
  region: Region,
  setup: Setup,
  stack: AsyncDisposableStack,
): Promise<BenchSide> {
  const { carrier, role } = setup;
  switch (carrier) {
    case "tcp":
      return new TcpSide(native, region, role);
    case "stream":
    case "stream-plain":
      return TransportSide.start(streamOf(native, setup), region, role);
    case "rdma": {
      const rdma = stack.use(rdmaOf(native, region, setup));
      return TransportSide.start(rdmaTransport(rdma, setup), region, role);
    }
    case "quic":
      return TransportSide.start(quicOf(native, setup), region, role);
    case "bare-quic":
      return BareQuic.start(native, region, role, setup.credentials);
    default:
      return unreachable(carrier satisfies never, "a carrier");
  }
}

function quicOf(native: Native, { credentials }: Setup): QuicTransport {
  const trust = createTrust(credentials, systemClock);
  const limits = { idleMs: IDLE_MS };
  return new QuicTransport({ trust, clock: systemClock, log: () => {}, native, limits });
}

function streamOf(native: Native, { carrier, credentials, lanes }: Setup): StreamTransport {
  const { threads, socketBytes } = laneShape(availableParallelism());
  return new StreamTransport({
    trust: createTrust(credentials, systemClock),
    clock: systemClock,
    log: () => {},
    ciphers: carrier === "stream" ? ["aegis-128l"] : ["none"],
    openLanes: (region) => openLanes(native, { region, threads, socketBytes }),
    lanes,
    lanesPort: 0,
  });
}

function rdmaOf(native: Native, region: Region, { verbs: library }: Setup): Rdma {
  return openRdma(native, {
    ...{ region, library, devices: null, gidIndex: null, onPort: () => {} },
    ...{ windowBytes: region.bytes, windowSpans: 1_024, linksMax: 16, readsMax: 1_024 },
  });
}

function rdmaTransport(rdma: Rdma, { credentials }: Setup): RdmaTransport {
  const trust = createTrust(credentials, systemClock);
  const settings = { timeout: 14, retries: 6, trafficClass: 0, serviceLevel: 0 };
  return new RdmaTransport({
    ...{ trust, clock: systemClock, log: () => {}, rails: 1, rdmaOf: () => rdma },
    settings: { ...settings, pieceBytes: READ_BYTES },
  });
}

/** Writes a message; resolves when it is written, because the next order may block this process. */
function say(news: News): Promise<void> {
  return new Promise((resolve) => {
    process.stdout.write(`${stringifyJson(news)}\n`, () => resolve());
  });
}

async function obey(side: BenchSide, order: Order): Promise<void> {
  switch (order.do) {
    case "prepare": {
      const { blockBytes, connections } = order;
      return side.prepare(blockBytes, connections, () => say({ did: "prepare" }));
    }
    case "dial":
      await side.dial(order.port);
      return say({ did: "dial" });
    case "pull":
      return say({ did: "pull", ...(await side.pull(order)) });
    case "usage": {
      const { user, system } = process.cpuUsage();
      const rssMb = process.memoryUsage.rss() / MIB;
      return say({ did: "usage", cpuSeconds: (user + system) / MICROS, rssMb });
    }
    default:
      return unreachable(order satisfies never, "an order");
  }
}

/** Blocking TCP sockets without any protocol: the rate that the network allows. */
class TcpSide implements BenchSide {
  readonly #native: Native;
  readonly #region: Region;
  readonly #listener: PlainListener | null;
  #port = 0;

  constructor(native: Native, region: Region, role: "server" | "client") {
    this.#native = native;
    this.#region = region;
    this.#listener = role === "server" ? plainListen(native) : null;
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  async prepare(_: number, connections: number, ready: () => Promise<void>): Promise<void> {
    await ready();
    if (this.#listener === null) throw new HearthError("INTERNAL", "a client does not serve");
    plainServe(this.#native, this.#region, this.#listener, connections);
  }

  async dial(port: number): Promise<void> {
    this.#port = port;
  }

  async pull(order: PullOrder): Promise<Pulled> {
    const { blockBytes, blocks, connections, inFlight } = order;
    const start = Bun.nanoseconds();
    const own = { region: this.#region, port: this.#port };
    plainPull(this.#native, { ...own, blockBytes, blocks, connections, inFlight });
    return { seconds: (Bun.nanoseconds() - start) / 1e9, ms: [], wrong: 0 };
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}

const HOST = "127.0.0.1";
export const SERVER = "server" as WorkerId;
const PULL_MS = 120_000;

/** A transport of Hearth as pulls use it: one request for each block. */
class TransportSide implements BenchSide {
  readonly #transport: Transport;
  readonly #region: Region;
  readonly #server: BenchServer;
  readonly port: number;
  #link: PeerConnection | null = null;

  private constructor(transport: Transport, region: Region, server: BenchServer, port: number) {
    this.#transport = transport;
    this.#region = region;
    this.#server = server;
    this.port = port;
  }

  static async start(
    transport: Transport,
    region: Region,
    role: "server" | "client",
  ): Promise<TransportSide> {
    await transport.register(region);
    if (transport.unsupported !== null) {
      throw new HearthError("UNSUPPORTED", `${transport.name}: ${transport.unsupported}`);
    }
    const server = new BenchServer(region);
    const isServer = role === "server";
    const port = isServer ? (await transport.listen({ host: HOST, port: 0 }, server)).port : 0;
    return new TransportSide(transport, region, server, port);
  }

  async prepare(blockBytes: number, _: number, ready: () => Promise<void>): Promise<void> {
    this.#server.setBlockBytes(blockBytes);
    await ready();
  }

  async dial(port: number): Promise<void> {
    const giveUp = new AbortController();
    const target = { host: HOST, port, worker: SERVER };
    const dialled = await this.#transport.dial(target, giveUp.signal);
    if (!dialled.ok) {
      const { kind, why } = dialled.fault;
      throw new HearthError("INTERNAL", `the server was not reached: ${kind}: ${why}`);
    }
    this.#link = dialled.connection;
  }

  async pull(order: PullOrder): Promise<Pulled> {
    const { blockBytes, inFlight } = order;
    const slots = Math.floor(this.#region.bytes / blockBytes);
    assert(slots >= inFlight, "blocks on their way have places of their own");
    return pullAll({ ...order, slots }, (slot) => this.#pullOne(slot, blockBytes));
  }

  /** Pulls one block. Returns whether it arrived and its bytes in the arena equal the server's. */
  async #pullOne(slot: number, bytesMax: number): Promise<boolean> {
    const link = this.#link;
    assert(link !== null, "a client has dialled");
    let isRight = false;
    const pull: OutgoingPull = {
      namespace: BENCH_NAMESPACE,
      items: [{ ...benchBlock(slot), bytesMax, generation: 0n, offset: slot * bytesMax }],
      deadlineMs: PULL_MS,
      signal: this.#never.signal,
      onBytes() {},
      onItem(_, result) {
        isRight = result.kind === "came" && result.checksum === result.header.checksum;
      },
    };
    const fault = await link.pull(pull);
    if (fault !== null) {
      throw new HearthError("INTERNAL", `a pull failed: ${fault.kind}: ${fault.why}`);
    }
    return isRight;
  }

  readonly #never = new AbortController();

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#link?.[Symbol.asyncDispose]();
    await this.#transport[Symbol.asyncDispose]();
  }
}

/**
 * Ways to transfer blocks. `tcp` and `bare-quic` are programs without Hearth's transport.
 * `stream-plain` is the stream transport without encryption, as on a network configured as trusted.
 */
const CARRIERS = ["tcp", "stream", "stream-plain", "rdma", "quic", "bare-quic"] as const;
export type Carrier = (typeof CARRIERS)[number];

/**
 * The first line that a process of the benchmark reads. It contains keys, which are stored nowhere
 * else.
 */
interface Setup {
  readonly carrier: Carrier;
  readonly role: "server" | "client";
  readonly credentials: Credentials;
  readonly regionBytes: number;
  readonly lanes: number;
  /** Path of the verbs library; null lets the dynamic linker find it. */
  readonly verbs: string | null;
}

/** An order to pull blocks. */
export interface PullOrder {
  readonly do: "pull";
  readonly blockBytes: number;
  readonly inFlight: number;
  readonly blocks: number;
  /** Number of connections of the plain TCP program. */
  readonly connections: number;
}

/**
 * Orders to a process, one JSON document per line on its standard input. The end of the input stops
 * the process.
 */
type Order =
  /** To the server: offer blocks of this length from now on. */
  | { readonly do: "prepare"; readonly blockBytes: number; readonly connections: number }
  | { readonly do: "dial"; readonly port: number }
  | PullOrder
  | { readonly do: "usage" };

/** Messages from the process, one JSON document per line on its standard output. */
type News =
  | { readonly did: "start"; readonly port: number }
  | { readonly did: "prepare" | "dial" }
  | ({ readonly did: "pull" } & Pulled)
  /** Processor time and resident memory of the process. */
  | { readonly did: "usage"; readonly cpuSeconds: number; readonly rssMb: number };

export interface Pulled {
  readonly seconds: number;
  /** Milliseconds of each pull, from the request to the last byte; empty for plain TCP. */
  readonly ms: readonly number[];
  /** Number of blocks that did not arrive or whose bytes differed. */
  readonly wrong: number;
}

/** One end of a transport, in its own process. */
export interface BenchSide extends AsyncDisposable {
  /** Port on which the server listens; 0 for a client. */
  readonly port: number;
  /**
   * Prepares blocks of this length. Calls `ready` when blocks may be pulled; may block the process.
   */
  prepare(blockBytes: number, connections: number, ready: () => Promise<void>): Promise<void>;
  dial(port: number): Promise<void>;
  pull(order: PullOrder): Promise<Pulled>;
}

export const BENCH_NAMESPACE = new Uint8Array(32).fill(0xbe);
const ALL_LAYERS = 0xffff_ffff;

/** Returns the address of the block in slot `slot` of the server's region. */
export function benchBlock(slot: number): WantedBlock {
  const digest = new Uint8Array(32);
  new DataView(digest.buffer).setUint32(0, slot, true);
  return { digest, layer: ALL_LAYERS };
}

/** Serves blocks of one length that lie one after another in a region. */
export class BenchServer implements PeerServer {
  readonly #region: Region;
  #blockBytes = 0;
  /** Checksum of each slot's block. */
  #checksums: bigint[] = [];

  constructor(region: Region) {
    this.#region = region;
  }

  /** Divides the region into blocks of this length from now on. */
  setBlockBytes(bytes: number): void {
    if (bytes === this.#blockBytes) return;
    const slots = Math.floor(this.#region.bytes / bytes);
    assert(slots > 0, "a block fits the region");
    this.#blockBytes = bytes;
    this.#checksums = Array.from({ length: slots }, (_, slot) =>
      this.#region.checksum(slot * bytes, bytes),
    );
  }

  async call(
    _peer: PeerIdentity,
    request: Exclude<PeerRequest, { op: "pull" }>,
  ): Promise<PeerAnswer> {
    if (request.op === "hello") return request;
    return { op: "refused", why: "a benchmark serves blocks alone" };
  }

  async *serve(
    _peer: PeerIdentity,
    pull: Extract<PeerRequest, { op: "pull" }>,
  ): AsyncIterable<Served> {
    for (const [index, item] of pull.items.entries()) {
      const slot = new DataView(item.digest.buffer, item.digest.byteOffset).getUint32(0, true);
      const checksum = this.#checksums[slot];
      if (checksum === undefined) {
        yield { index, kind: "absent" };
        continue;
      }
      const header: FrameHeader = {
        digest: item.digest,
        layer: item.layer,
        model: "",
        bytes: this.#blockBytes,
        namespace: pull.namespace,
        generation: 1n,
        checksum,
        mac: null,
        parent: null,
        transient: false,
        aliases: [],
      };
      const offset = slot * this.#blockBytes;
      yield { index, kind: "block", header, offset, release: () => {} };
    }
  }
}

type NewsOf<Did extends News["did"]> = Extract<News, { did: Did }>;

/** A process of this program that is one end of a transport. Disposing kills it. */
export class PeerProcess extends LineProcess {
  port = 0;

  static async start(setup: Setup, signal: AbortSignal): Promise<PeerProcess> {
    const words = [...selfCommand(), "bench", "peer", "--serve"];
    const started = new PeerProcess(words, { signal });
    started.send(stringifyJson(setup));
    started.port = (await started.#hear("start")).port;
    return started;
  }

  /** Sends an order and returns the process's message about its completion. */
  order<Did extends Order["do"]>(order: Extract<Order, { do: Did }>): Promise<NewsOf<Did>> {
    this.send(stringifyJson(order));
    return this.#hear(order.do as Did);
  }

  async #hear<Did extends News["did"]>(did: Did): Promise<NewsOf<Did>> {
    const news = (await this.next()) as News;
    if (news.did === did) return news as NewsOf<Did>;
    throw new HearthError("INTERNAL", `the benchmark's process said ${news.did} for ${did}`);
  }
}
