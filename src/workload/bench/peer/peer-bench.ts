import { formatBytes, HearthError, systemClock, type WorkerId } from "../../../core/index.ts";
import { type Credentials, issueHost, makeAuthority } from "../../../peers/index.ts";
import { median, quantile } from "../measure.ts";
import type { Carrier, Pulled } from "./peer-child.ts";
import { PeerProcess, SERVER } from "./peer-child.ts";

export const BENCH_TRANSPORTS = ["quic", "stream", "rdma"] as const;
export type BenchTransport = (typeof BENCH_TRANSPORTS)[number];

export interface PeerBenchOptions {
  readonly transports: readonly BenchTransport[];
  readonly blockBytes: readonly number[];
  readonly inFlight: readonly number[];
  /** Bytes pulled with each transport in each round; QUIC pulls an eighth. */
  readonly bytes: number;
  readonly rounds: number;
  /** Number of data connections (lanes) of the stream transport. */
  readonly lanes: number;
  /** Path of the verbs library; null lets the dynamic linker find it. */
  readonly verbs: string | null;
  /** Path of iperf3, to compare with; null for no comparison. */
  readonly iperf: string | null;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

const QUIC_SHARE = 1 / 8;
/** Minimum number of blocks per slot, so that start and end of a run have little effect. */
const TURNS_MIN = 2;
const CONNECTIONS_MAX = 4;

const CARRIERS_OF: Readonly<Record<BenchTransport, readonly Carrier[]>> = {
  quic: ["quic", "bare-quic"],
  stream: ["stream", "stream-plain"],
  rdma: ["rdma"],
};

/**
 * Pulls the same blocks with each transport in turn, round after round, so that a slow moment of
 * the host affects all of them.
 */
export async function benchPeer(options: PeerBenchOptions) {
  const { transports, signal, lanes, verbs, onProgress } = options;
  const carriers: Carrier[] = ["tcp", ...transports.flatMap((name) => CARRIERS_OF[name])];
  const credentials = benchCluster();
  const regionBytes = regionBytesOf(options);
  await using started = new AsyncDisposableStack();
  const pairs: CarrierPair[] = [];
  for (const carrier of carriers) {
    const own = { regionBytes, lanes, verbs, signal };
    pairs.push(started.use(await CarrierPair.start(carrier, credentials, own)));
  }
  const rows: ReturnType<Race["rowsOf"]> = [];
  for (const blockBytes of options.blockBytes) {
    for (const inFlight of options.inFlight) {
      const say = (round: number) =>
        onProgress(`${formatBytes(blockBytes)} x ${inFlight}, round ${round + 1}`);
      const race = new Race(pairs, options, { blockBytes, inFlight });
      for (let round = 0; round < options.rounds; round++) {
        say(round);
        await race.round(round);
      }
      rows.push(...transports.flatMap((name) => race.rowsOf(name)));
    }
  }
  return rows;
}

/**
 * Returns the bytes of the arena: room for all blocks in flight, and more than any processor cache
 * holds.
 */
function regionBytesOf({ blockBytes, inFlight }: PeerBenchOptions): number {
  return Math.max(128 * 2 ** 20, Math.max(...blockBytes) * Math.max(...inFlight));
}

/** Measurements of all transports for one block size and one number of blocks in flight. */
class Race {
  readonly #pairs: readonly CarrierPair[];
  readonly #options: PeerBenchOptions;
  readonly #size: { readonly blockBytes: number; readonly inFlight: number };
  readonly #measured = new Map<Carrier, Measured[]>();
  readonly #iperfGbps: number[] = [];

  constructor(
    pairs: readonly CarrierPair[],
    options: PeerBenchOptions,
    size: { readonly blockBytes: number; readonly inFlight: number },
  ) {
    this.#pairs = pairs;
    this.#options = options;
    this.#size = size;
  }

  /** Measures each transport once. The order changes from round to round. */
  async round(number: number): Promise<void> {
    const { blockBytes, inFlight } = this.#size;
    for (let turn = 0; turn < this.#pairs.length; turn++) {
      const pair = this.#pairs[(number + turn) % this.#pairs.length];
      const { carrier } = pair;
      const load = this.#loadOf(carrier);
      const measured = carrier === "tcp" ? await bestTcp(pair, load) : await pair.measure(load);
      this.#measured.set(carrier, [...(this.#measured.get(carrier) ?? []), measured]);
    }
    const { iperf, bytes, signal } = this.#options;
    if (iperf === null) return;
    const own = { bytes, connections: inFlight, lengthBytes: blockBytes, signal };
    this.#iperfGbps.push(await new Iperf(iperf).gbps(own));
  }

  #loadOf(carrier: Carrier): Load {
    const { blockBytes, inFlight } = this.#size;
    const share = carrier === "quic" || carrier === "bare-quic" ? QUIC_SHARE : 1;
    const wanted = Math.ceil((this.#options.bytes * share) / blockBytes);
    const blocks = Math.max(wanted, TURNS_MIN * inFlight);
    return { blockBytes, inFlight, blocks, connections: 1 };
  }

  rowsOf(transport: BenchTransport) {
    if (transport === "quic") return [this.#row(transport, "quic", "bare-quic")];
    if (transport === "rdma") return [this.#row(transport, "rdma", "tcp")];
    return (["stream", "stream-plain"] as const).map((carrier) =>
      this.#row(transport, carrier, "tcp"),
    );
  }

  #gbps(carrier: Carrier): number {
    return median(this.#measured.get(carrier)!.map(gbpsOf));
  }

  #cpuSPerGb(carrier: Carrier): number {
    const measured = this.#measured.get(carrier)!;
    return median(measured.map(({ cpuSeconds, bytes }) => (cpuSeconds * 1e9) / bytes));
  }

  /** Rates in 10^9 bytes of payload a second; medians over the rounds. */
  #row(transport: BenchTransport, carrier: Carrier, bareCarrier: Carrier) {
    const measured = this.#measured.get(carrier)!;
    const gbps = this.#gbps(carrier);
    const bare = this.#gbps(bareCarrier);
    const tcp = this.#gbps("tcp");
    const ms = measured.flatMap((one) => one.ms);
    return {
      transport,
      sealed: carrier !== "stream-plain" && carrier !== "rdma",
      block_bytes: this.#size.blockBytes,
      in_flight: this.#size.inFlight,
      gbps,
      p50_ms: quantile(ms, 0.5),
      p99_ms: quantile(ms, 0.99),
      /** Processor time of both hosts, or of both ends of the bare program. */
      cpu_s_per_gb: this.#cpuSPerGb(carrier),
      bare_cpu_s_per_gb: this.#cpuSPerGb(bareCarrier),
      /** A program that does nothing else over the same protocol. */
      bare_gbps: bare,
      of_bare: gbps / bare,
      /** Blocking sockets, the better of one connection and several. */
      tcp_gbps: tcp,
      of_tcp: gbps / tcp,
      iperf3_gbps: this.#iperfGbps.length === 0 ? null : median(this.#iperfGbps),
      /** Damaged blocks. */
      wrong: measured.reduce((sum, one) => sum + one.wrong, 0),
    };
  }
}

/**
 * Measures blocking sockets over one connection and, with several blocks in flight, over several.
 * Returns the better result.
 */
async function bestTcp(pair: CarrierPair, load: Load): Promise<Measured> {
  const one = await pair.measure(load);
  const connections = Math.min(load.inFlight, CONNECTIONS_MAX);
  if (connections === 1) return one;
  const several = await pair.measure({ ...load, connections });
  return gbpsOf(one) > gbpsOf(several) ? one : several;
}

function gbpsOf({ bytes, seconds }: Measured): number {
  return bytes / seconds / 1e9;
}

export interface PeerPullsOptions
  extends Pick<PeerBenchOptions, "transports" | "lanes" | "verbs" | "signal" | "onProgress"> {
  readonly blockBytes: number;
  readonly inFlight: number;
  readonly pulls: number;
}

/**
 * Result of many pulls over one connection. Memory is the resident memory of the processes,
 * including their arenas.
 */
export type PeerPullsRow = Awaited<ReturnType<typeof pullMany>>;

const REGION_BYTES = 64 * 2 ** 20;
/** Number of parts of a run; memory is measured after each. */
const PARTS = 20;
/**
 * Number of parts that are the warm-up, after which the processes use a stable amount of memory.
 */
const WARM_PARTS = PARTS / 5;

/** Runs the same number of pulls with each transport, one transport after another. */
export async function benchPeerPulls(options: PeerPullsOptions) {
  const { transports, blockBytes, inFlight, lanes, verbs, signal } = options;
  const regionBytes = Math.max(REGION_BYTES, blockBytes * inFlight);
  const credentials = benchCluster();
  const rows: PeerPullsRow[] = [];
  for (const transport of transports) {
    const own = { regionBytes, lanes, verbs, signal };
    await using pair = await CarrierPair.start(transport, credentials, own);
    rows.push(await pullMany(pair, transport, options));
  }
  return rows;
}

async function pullMany(pair: CarrierPair, transport: BenchTransport, options: PeerPullsOptions) {
  const { blockBytes, inFlight, pulls, onProgress } = options;
  const ms: number[] = [];
  const serverMb: number[] = [];
  const clientMb: number[] = [];
  let wrong = 0;
  for (let part = 0; part < PARTS; part++) {
    onProgress(`${transport}, ${formatBytes(blockBytes)}: ${ms.length} of ${pulls}`);
    const blocks = Math.ceil((pulls - ms.length) / (PARTS - part));
    const measured = await pair.measure({ blockBytes, inFlight, blocks, connections: 1 });
    for (const one of measured.ms) ms.push(one);
    wrong += measured.wrong;
    const { serverRssMb, clientRssMb } = await pair.usage();
    serverMb.push(serverRssMb);
    clientMb.push(clientRssMb);
  }
  const p50 = quantile(ms, 0.5);
  const longest = ms.reduce((most, one) => Math.max(most, one), 0);
  return {
    transport,
    block_bytes: blockBytes,
    in_flight: inFlight,
    pulls: ms.length,
    p50_ms: p50,
    p99_ms: quantile(ms, 0.99),
    longest_ms: longest,
    longest_over_p50: longest / p50,
    /**
     * Resident memory of the server after the warm-up, in MB. The next member is the maximum after
     * that.
     */
    holder_rss_mb: serverMb[WARM_PARTS - 1],
    holder_rss_max_mb: Math.max(...serverMb.slice(WARM_PARTS)),
    asker_rss_mb: clientMb[WARM_PARTS - 1],
    asker_rss_max_mb: Math.max(...clientMb.slice(WARM_PARTS)),
    wrong,
  };
}

interface IperfLoad {
  readonly bytes: number;
  readonly connections: number;
  /** Maximum bytes of one system call; iperf3 accepts at most 1 MiB. */
  readonly lengthBytes: number;
  readonly signal: AbortSignal;
}

const LENGTH_BYTES_MAX = 2 ** 20;

/** The members of iperf3's report that are used. */
interface Report {
  readonly end?: { readonly sum_received?: { readonly bits_per_second: number } };
  readonly error?: string;
}

/** Runs iperf3 over the loopback interface, with a server and a client on this host. */
export class Iperf {
  readonly #program: string;

  constructor(program: string) {
    this.#program = program;
  }

  /** Returns the path of iperf3; null if the host does not have it. */
  static find(): string | null {
    return Bun.which("iperf3");
  }

  /**
   * Returns the rate of bytes that arrived, in 10^9 bytes per second. Throws UNSUPPORTED if iperf3
   * does not work on this host.
   */
  async gbps(load: IperfLoad): Promise<number> {
    const { signal } = load;
    const port = freePort();
    const words = ["-s", "-1", "-B", "127.0.0.1", "-p", `${port}`, "--forceflush"];
    const server = Bun.spawn([this.#program, ...words], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "ignore",
      signal,
    });
    try {
      // iperf3 prints a line when it listens.
      const reader = server.stdout.getReader();
      await reader.read();
      const report = await this.#run(load, port);
      const bits = report.end?.sum_received?.bits_per_second;
      if (bits !== undefined) return bits / 8e9;
      throw new HearthError("UNSUPPORTED", `iperf3: ${report.error ?? "no figures"}`);
    } finally {
      server.kill("SIGKILL");
      await server.exited;
    }
  }

  async #run(load: IperfLoad, port: number): Promise<Report> {
    const { bytes, connections, lengthBytes, signal } = load;
    const where = ["-c", "127.0.0.1", "-p", `${port}`, "-J"];
    const length = Math.min(lengthBytes, LENGTH_BYTES_MAX);
    const what = ["-n", `${bytes}`, "-P", `${connections}`, "-l", `${length}`];
    const client = Bun.spawn([this.#program, ...where, ...what], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "ignore",
      signal,
    });
    return JSON.parse(await client.stdout.text()) as Report;
  }
}

function freePort(): number {
  const socket = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
  const { port } = socket;
  socket.stop(true);
  return port;
}

const CLIENT = "client" as WorkerId;
const CLUSTER = "bench";
const HOUR_MS = 3_600_000;

/** Result of one measurement. */
interface Measured extends Pulled {
  /** Processor time of both processes in seconds. */
  readonly cpuSeconds: number;
  readonly bytes: number;
}

interface Load {
  readonly blockBytes: number;
  readonly inFlight: number;
  readonly blocks: number;
  /** Number of connections of the plain TCP program; other transports ignore it. */
  readonly connections: number;
}

interface PairOptions extends Pick<PeerBenchOptions, "lanes" | "verbs" | "signal"> {
  readonly regionBytes: number;
}

/**
 * Load of the warm-up, during which JavaScript is compiled, as it is in an agent that has run for
 * some time.
 */
const WARM_UP: Load = { blockBytes: 64 * 1024, inFlight: 8, blocks: 2_000, connections: 1 };

/** Creates certificates of a temporary cluster for the benchmark's two processes. */
export function benchCluster(): Readonly<Record<"server" | "client", Credentials>> {
  const nowMs = systemClock.wallMs();
  const validity = { notBeforeMs: nowMs - HOUR_MS, notAfterMs: nowMs + 24 * HOUR_MS };
  const authority = makeAuthority({ cluster: CLUSTER, validity });
  const host = (worker: WorkerId): Credentials => {
    const name = { cluster: CLUSTER, worker };
    const { certificate, key } = issueHost({ authority, name, key: null, validity });
    const { notAfterMs } = validity;
    const authorities = authority.certificate;
    return { ...name, certificates: certificate, key, authorities, notAfterMs };
  };
  return { server: host(SERVER), client: host(CLIENT) };
}

/** A server process and a client process of one transport, connected to each other. */
class CarrierPair implements AsyncDisposable {
  readonly carrier: Carrier;
  readonly #server: PeerProcess;
  readonly #client: PeerProcess;

  private constructor(carrier: Carrier, server: PeerProcess, client: PeerProcess) {
    this.carrier = carrier;
    this.#server = server;
    this.#client = client;
  }

  static async start(
    carrier: Carrier,
    credentials: ReturnType<typeof benchCluster>,
    options: PairOptions,
  ): Promise<CarrierPair> {
    const { signal, ...own } = options;
    const start = (role: "server" | "client") =>
      PeerProcess.start({ carrier, role, credentials: credentials[role], ...own }, signal);
    const server = await start("server");
    const client = await start("client");
    await client.order({ do: "dial", port: server.port });
    const pair = new CarrierPair(carrier, server, client);
    await pair.measure(WARM_UP);
    return pair;
  }

  async measure(load: Load): Promise<Measured> {
    const before = await this.usage();
    const { blockBytes, connections } = load;
    await this.#server.order({ do: "prepare", blockBytes, connections });
    const pulled = await this.#client.order({ do: "pull", ...load });
    const after = await this.usage();
    const { seconds, ms, wrong } = pulled;
    const cpuSeconds = after.cpuSeconds - before.cpuSeconds;
    return { seconds, ms, wrong, cpuSeconds, bytes: load.blocks * blockBytes };
  }

  /** Returns the processor time of both processes so far, and the resident memory of each. */
  async usage(): Promise<{ cpuSeconds: number; serverRssMb: number; clientRssMb: number }> {
    const server = await this.#server.order({ do: "usage" });
    const client = await this.#client.order({ do: "usage" });
    const cpuSeconds = server.cpuSeconds + client.cpuSeconds;
    return { cpuSeconds, serverRssMb: server.rssMb, clientRssMb: client.rssMb };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#client[Symbol.asyncDispose]();
    await this.#server[Symbol.asyncDispose]();
  }
}
