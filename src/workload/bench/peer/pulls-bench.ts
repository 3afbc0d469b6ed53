import { formatBytes } from "../../../core/index.ts";
import { quantile } from "../quantiles.ts";
import { benchCluster, CarrierPair } from "./carrier-pair.ts";
import type { BenchTransport } from "./peer-bench.ts";

export interface PeerPullsOptions {
  readonly transports: readonly BenchTransport[];
  readonly blockBytes: number;
  readonly inFlight: number;
  readonly pulls: number;
  readonly lanes: number;
  readonly verbs: string | null;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

/** Many pulls over one link. Memory is what the processes have, their arenas included. */
export interface PeerPullsRow {
  readonly transport: BenchTransport;
  readonly block_bytes: number;
  readonly in_flight: number;
  readonly pulls: number;
  readonly p50_ms: number;
  readonly p99_ms: number;
  readonly longest_ms: number;
  readonly longest_over_p50: number;
  /** After the first fifth of the pulls, and the most there was from then on. */
  readonly holder_rss_mb: number;
  readonly holder_rss_max_mb: number;
  readonly asker_rss_mb: number;
  readonly asker_rss_max_mb: number;
  readonly wrong: number;
}

const REGION_BYTES = 64 * 2 ** 20;
/** How often it is looked at what the processes have. */
const PARTS = 20;
/** Until then they come to what they need. */
const WARM_PARTS = PARTS / 5;

/** So many pulls by each transport, one transport behind the other. */
export async function benchPeerPulls(options: PeerPullsOptions): Promise<PeerPullsRow[]> {
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

async function pullMany(
  pair: CarrierPair,
  transport: BenchTransport,
  options: PeerPullsOptions,
): Promise<PeerPullsRow> {
  const { blockBytes, inFlight, pulls, onProgress } = options;
  const ms: number[] = [];
  const holderMb: number[] = [];
  const askerMb: number[] = [];
  let wrong = 0;
  for (let part = 0; part < PARTS; part++) {
    onProgress(`${transport}, ${formatBytes(blockBytes)}: ${ms.length} of ${pulls}`);
    const blocks = Math.ceil((pulls - ms.length) / (PARTS - part));
    const measured = await pair.measure({ blockBytes, inFlight, blocks, connections: 1 });
    for (const one of measured.ms) ms.push(one);
    wrong += measured.wrong;
    const { holderRssMb, askerRssMb } = await pair.tell();
    holderMb.push(holderRssMb);
    askerMb.push(askerRssMb);
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
    holder_rss_mb: holderMb[WARM_PARTS - 1]!,
    holder_rss_max_mb: Math.max(...holderMb.slice(WARM_PARTS)),
    asker_rss_mb: askerMb[WARM_PARTS - 1]!,
    asker_rss_max_mb: Math.max(...askerMb.slice(WARM_PARTS)),
    wrong,
  };
}
