import { formatBytes } from "../../../core/index.ts";
import { median, quantile } from "../quantiles.ts";
import { benchCluster, CarrierPair, type Load, type Measured } from "./carrier-pair.ts";
import { Iperf } from "./iperf.ts";
import type { Carrier } from "./orders.ts";

export const BENCH_TRANSPORTS = ["quic", "stream", "rdma"] as const;
export type BenchTransport = (typeof BENCH_TRANSPORTS)[number];

export interface PeerBenchOptions {
  readonly transports: readonly BenchTransport[];
  readonly blockBytes: readonly number[];
  readonly inFlight: readonly number[];
  /** Pulled by each carrier in each round; QUIC pulls an eighth. */
  readonly bytes: number;
  readonly rounds: number;
  /** Connections that carry payload of the stream transport. */
  readonly lanes: number;
  /** Path of the verbs' library; null: as the dynamic linker finds it. */
  readonly verbs: string | null;
  /** The program to compare with, too; null: none. */
  readonly iperf: string | null;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

/** Rates in 10^9 bytes of payload a second; medians over the rounds. */
export interface PeerRow {
  readonly transport: BenchTransport;
  readonly sealed: boolean;
  readonly block_bytes: number;
  readonly in_flight: number;
  readonly gbps: number;
  readonly p50_ms: number;
  readonly p99_ms: number;
  /** Of both hosts, and of both ends of the bare program. */
  readonly cpu_s_per_gb: number;
  readonly bare_cpu_s_per_gb: number;
  /** A program that does nothing else over the same protocol. */
  readonly bare_gbps: number;
  readonly of_bare: number;
  /** Blocking sockets, the better of one connection and several. */
  readonly tcp_gbps: number;
  readonly of_tcp: number;
  readonly iperf3_gbps: number | null;
  /** Blocks that came otherwise than they were. */
  readonly wrong: number;
}

const QUIC_SHARE = 1 / 8;
/** Blocks behind each other, so that what begins and ends does not count for much. */
const TURNS_MIN = 2;
const CONNECTIONS_MAX = 4;

const CARRIERS_OF: Readonly<Record<BenchTransport, readonly Carrier[]>> = {
  quic: ["quic", "bare-quic"],
  stream: ["stream", "stream-plain"],
  rdma: ["rdma"],
};

/**
 * The same blocks by each carrier in turn, round after round, so that a slow moment of the host
 * hits all of them.
 */
export async function benchPeer(options: PeerBenchOptions): Promise<PeerRow[]> {
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
  const rows: PeerRow[] = [];
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

/** Room for all that is on its way, and enough that no processor keeps it in its cache. */
function regionBytesOf({ blockBytes, inFlight }: PeerBenchOptions): number {
  return Math.max(128 * 2 ** 20, Math.max(...blockBytes) * Math.max(...inFlight));
}

/** One length of blocks, and one number of them in flight. */
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

  /** Who begins changes from round to round. */
  async round(number: number): Promise<void> {
    const { blockBytes, inFlight } = this.#size;
    for (let turn = 0; turn < this.#pairs.length; turn++) {
      const pair = this.#pairs[(number + turn) % this.#pairs.length]!;
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

  rowsOf(transport: BenchTransport): PeerRow[] {
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

  #row(transport: BenchTransport, carrier: Carrier, bareCarrier: Carrier): PeerRow {
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
      cpu_s_per_gb: this.#cpuSPerGb(carrier),
      bare_cpu_s_per_gb: this.#cpuSPerGb(bareCarrier),
      bare_gbps: bare,
      of_bare: gbps / bare,
      tcp_gbps: tcp,
      of_tcp: gbps / tcp,
      iperf3_gbps: this.#iperfGbps.length === 0 ? null : median(this.#iperfGbps),
      wrong: measured.reduce((sum, one) => sum + one.wrong, 0),
    };
  }
}

/** Over one connection, and over several where several blocks are in flight: the better. */
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
