import type {
  PeerReport,
  PeerServices,
  PeersReport,
  PullsReport,
  StatusReport,
} from "../api/index.ts";
import type { BlockName, Clock } from "../core/index.ts";
import {
  BREAKER_STATES,
  PEER_STATES,
  type PeersSnapshot,
  PULL_OUTCOME_LABELS,
  TRANSPORT_LABELS,
} from "../observability/index.ts";
import type { PeerRecord, PeerStatus, PullTrace } from "../peers/index.ts";
import type { TieredStore } from "../store/index.ts";
import type { PeersService } from "./peers-service.ts";

const WITHOUT: PeersReport = {
  enabled: false,
  cluster: null,
  certificate_ends: null,
  listening: {},
  inbound_links: 0,
  lent_bytes: 0,
  in_flight_bytes: 0,
  peers: [],
};
/** Maximum block names for one engine hash. */
const MEANT_MAX = 64;

/** HTTP reports about peers. They outlive the peers service: `room` then returns null. */
export function peerServices(
  service: () => PeersService | null,
  store: TieredStore,
  clock: Clock,
): PeerServices {
  return {
    report: () => {
      const open = service();
      return open === null ? WITHOUT : reportOf(open, clock);
    },
    pulls: (name, max) => {
      const traces = service()?.puller.traces(null) ?? [];
      const wanted = name === null ? traces : traces.filter(isMeant(store, name));
      return { pulls: wanted.slice(0, max).map(pullOf) };
    },
  };
}

/** Body of `/v1/status`, `peers`. */
export function peersStatus(
  service: PeersService | null,
  store: TieredStore,
): StatusReport["peers"] {
  if (service === null) return null;
  const { pulledBlocks, pulledBytes, lentBlocks, lentBytes } = store.stats;
  const peers = service.puller.peers();
  return {
    known: peers.length,
    down: peers.filter(({ state }) => state === "down").length,
    pulled_blocks: pulledBlocks,
    pulled_bytes: pulledBytes,
    served_blocks: lentBlocks,
    served_bytes: lentBytes,
    in_flight_bytes: service.puller.stats.inFlightBytes,
  };
}

/** Values for metrics. */
export function peersSnapshot({
  puller,
  prerequisites,
  summaries,
  announcer,
}: PeersService): PeersSnapshot {
  const { stats } = puller;
  const { server, transports, trust } = prerequisites;
  const served = server.stats;
  const peers = puller.peers();
  const count = <Name extends string>(names: readonly Name[], is: (name: Name) => number) =>
    Object.fromEntries(names.map((name) => [name, is(name)])) as Record<Name, number>;
  const byTransport = TRANSPORT_LABELS.map((name) => [
    name,
    { ...stats.byTransport[name], inboundConnections: transports.inboundConnections(name) },
  ]);
  return {
    outcomes: count(PULL_OUTCOME_LABELS, (name) => stats.outcomes[name]),
    byTransport: Object.fromEntries(byTransport),
    hedges: stats.hedges,
    hedgesWon: stats.hedgesWon,
    sharedPulls: stats.sharedPulls,
    corrupt: stats.corrupt,
    inFlightBytes: stats.inFlightBytes,
    waiting: stats.waiting,
    states: count(PEER_STATES, (name) => peers.filter(({ state }) => state === name).length),
    breakers: count(BREAKER_STATES, (name) => peers.filter((one) => one.breaker === name).length),
    served: {
      block: served.blocks,
      absent: served.absent,
      busy: served.busy,
      refused: served.refused + served.tooLong,
    },
    servedBytes: served.bytes,
    lentBytes: served.lentBytes,
    summaryBytes: summaries?.stats().bytes ?? 0,
    wrongSummaries: summaries?.stats().wrong ?? 0,
    announcements: announcer?.stats() ?? { heard: 0, refused: 0, dropped: 0 },
    certificateEndsSeconds: Math.floor(trust.credentials.notAfterMs / 1_000),
  };
}

function reportOf(service: PeersService, clock: Clock): PeersReport {
  const { prerequisites, puller, members } = service;
  const { credentials } = prerequisites.trust;
  const links = TRANSPORT_LABELS.map((name) => prerequisites.transports.inboundConnections(name));
  return {
    enabled: true,
    cluster: credentials.cluster,
    certificate_ends: dateOf(credentials.notAfterMs),
    listening: { ...service.endpoints },
    inbound_links: links.reduce((sum, one) => sum + one, 0),
    lent_bytes: prerequisites.server.stats.lentBytes,
    in_flight_bytes: puller.stats.inFlightBytes,
    peers: puller.peers().map((peer) => peerOf(peer, members.get(peer.worker), clock)),
  };
}

function peerOf(peer: PeerStatus, record: PeerRecord | null, clock: Clock): PeerReport {
  const { certificateEndsMs, transportsDown } = peer;
  const heardMs = record?.heardMs ?? null;
  return {
    worker_id: peer.worker,
    origin: peer.origin,
    state: peer.state,
    transport: peer.transport,
    goodput_bytes_per_second: peer.goodput,
    rtt_ms: peer.rttMs,
    breaker: peer.breaker,
    cooldown_ms: peer.cooldownMs,
    certificate_ends: certificateEndsMs === null ? null : dateOf(certificateEndsMs),
    in_flight_bytes: peer.inFlightBytes,
    pulled_blocks: peer.pulledBlocks,
    pulled_bytes: peer.pulledBytes,
    failures: peer.failures,
    last_fault: peer.lastFault,
    transports_down: transportsDown.map(({ name, retryMs }) => ({
      transport: name,
      retry_ms: Math.max(0, retryMs),
    })),
    endpoints: { ...record?.endpoints },
    hardware: hardwareOf(record),
    heard_seconds_ago: heardMs === null ? null : (clock.monotonicMs() - heardMs) / 1_000,
  };
}

function hardwareOf(record: PeerRecord | null): PeerReport["hardware"] {
  if (record === null || record.hardware === null) return null;
  const { rdmaDevices, cores, hasAes } = record.hardware;
  return { rdma_devices: [...rdmaDevices], cores, aes: hasAes };
}

/**
 * Matches traces by the block's key or digest; an engine hash through the names known on this host.
 */
function isMeant(store: TieredStore, name: BlockName): (trace: PullTrace) => boolean {
  const bytes = name.kind === "key" ? name.bytes : new Uint8Array(8);
  if (name.kind === "hash") {
    const view = new DataView(bytes.buffer);
    view.setUint32(0, name.lo, true);
    view.setUint32(4, name.hi, true);
  }
  const hex = bytes.toHex();
  const digests = store.peerBlocks.find(bytes, MEANT_MAX).map(({ digest }) => digest.toHex());
  return ({ key, digest }) => key === hex || digest === hex || digests.includes(digest);
}

function pullOf(trace: PullTrace): PullsReport["pulls"][number] {
  const { key, digest, layer, priority, startedWallMs, outcome, bytes, steps } = trace;
  const started = dateOf(startedWallMs);
  return {
    key,
    digest,
    layer,
    priority,
    started,
    outcome,
    bytes,
    steps: steps.map((s) => ({ ...s })),
  };
}

function dateOf(ms: number): string {
  return new Date(ms).toISOString();
}
