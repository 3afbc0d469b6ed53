import type { MetricSpec } from "./catalogue.ts";
import type { MetricRegistry } from "./registry.ts";

/** Outcomes of a fetch of one block. */
export const PULL_OUTCOME_LABELS = [
  "ok",
  "absent",
  "busy",
  "full",
  "late",
  "corrupt",
  "failed",
  "unprofitable",
  "aborted",
] as const;

/** Transports of this version. */
export const TRANSPORT_LABELS = ["rdma", "stream", "quic"] as const;
export type TransportLabel = (typeof TRANSPORT_LABELS)[number];

export const PEER_STATES = ["linked", "dialling", "idle", "down"] as const;
export const BREAKER_STATES = ["closed", "open", "trial"] as const;
/** Answers to requests of peers. */
export const SERVED_OUTCOMES = ["block", "absent", "busy", "refused"] as const;

/** Seconds, from a round trip in a rack to a large block over a slow connection. */
const PULL_BUCKETS = [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5] as const;

/** Metrics of fetching from peers and serving them. */
export const PEER_METRICS = {
  quicPulls: {
    name: "cgn_kvcached_quic_pulls_total",
    type: "counter",
    help: "Fetches of single blocks from peers over all transports, by outcome",
    labels: { outcome: PULL_OUTCOME_LABELS },
  },
  peerPullSeconds: {
    name: "hearth_peer_pull_seconds",
    type: "histogram",
    help: "Time from a request to a peer to the last byte of a block",
    labels: { transport: TRANSPORT_LABELS },
    buckets: PULL_BUCKETS,
  },
  peerBlocks: {
    name: "hearth_peer_blocks_total",
    type: "counter",
    help: "Blocks received from peers that passed verification",
    labels: { transport: TRANSPORT_LABELS },
  },
  peerBytes: {
    name: "hearth_peer_bytes_total",
    type: "counter",
    help: "Bytes of the blocks received from peers",
    labels: { transport: TRANSPORT_LABELS },
  },
  peerFallbacks: {
    name: "hearth_peer_fallbacks_total",
    type: "counter",
    help: "Requests repeated over another transport because this one failed",
    labels: { transport: TRANSPORT_LABELS },
  },
  peerHedges: {
    name: "hearth_peer_hedges_total",
    type: "counter",
    help:
      "Requests sent to a second peer because the first was slow; won: the second answered " +
      "first",
    labels: { outcome: ["asked", "won"] },
  },
  peerSharedPulls: {
    name: "hearth_peer_shared_pulls_total",
    type: "counter",
    help: "Requests joined to a fetch in progress",
    labels: {},
  },
  peerCorrupt: {
    name: "hearth_peer_corrupt_blocks_total",
    type: "counter",
    help: "Answers of peers that failed verification and were discarded",
    labels: {},
  },
  peerInFlightBytes: {
    name: "hearth_peer_in_flight_bytes",
    type: "gauge",
    help: "Bytes of blocks being fetched",
    labels: {},
  },
  peerWaiting: {
    name: "hearth_peer_waiting_pulls",
    type: "gauge",
    help: "Fetches waiting for the limit on bytes in flight",
    labels: {},
  },
  peers: {
    name: "hearth_peers",
    type: "gauge",
    help: "Known peers, by connection state",
    labels: { state: PEER_STATES },
  },
  peerBreakers: {
    name: "hearth_peer_breakers",
    type: "gauge",
    help: "Peers by circuit breaker state; open: not used for a while",
    labels: { state: BREAKER_STATES },
  },
  peerInboundLinks: {
    name: "hearth_peer_inbound_links",
    type: "gauge",
    help: "Connections from peers",
    labels: { transport: TRANSPORT_LABELS },
  },
  peerServed: {
    name: "hearth_peer_served_total",
    type: "counter",
    help: "Blocks requested by peers, by outcome",
    labels: { outcome: SERVED_OUTCOMES },
  },
  peerServedBytes: {
    name: "hearth_peer_served_bytes_total",
    type: "counter",
    help: "Bytes of the blocks served to peers",
    labels: {},
  },
  peerLentBytes: {
    name: "hearth_peer_lent_bytes",
    type: "gauge",
    help: "Bytes being served to peers, which cannot be evicted",
    labels: {},
  },
  peerSummaryBytes: {
    name: "hearth_peer_summary_bytes",
    type: "gauge",
    help: "Memory of the index of peers' blocks",
    labels: {},
  },
  peerWrongSummaries: {
    name: "hearth_peer_wrong_summaries_total",
    type: "counter",
    help: "Blocks missing on a peer although the index listed them",
    labels: {},
  },
  peerAnnouncements: {
    name: "hearth_peer_announcements_total",
    type: "counter",
    help: "Announcements of peers over NATS; refused: not valid; dropped: too many",
    labels: { outcome: ["heard", "refused", "dropped"] },
  },
  peerCertificateEnds: {
    name: "hearth_peer_certificate_ends_seconds",
    type: "gauge",
    help: "Expiry of this host's certificate in seconds since 1970; 0 without one",
    labels: {},
  },
} as const satisfies Record<string, MetricSpec>;

type Counts<Names extends readonly string[]> = Readonly<Record<Names[number], number>>;

/** Fetching from peers and serving them. Counters since the start. */
export interface PeersSnapshot {
  readonly outcomes: Counts<typeof PULL_OUTCOME_LABELS>;
  readonly byTransport: Readonly<
    Record<
      TransportLabel,
      {
        readonly blocks: number;
        readonly bytes: number;
        readonly fallbacks: number;
        readonly inboundConnections: number;
      }
    >
  >;
  readonly hedges: number;
  readonly hedgesWon: number;
  readonly sharedPulls: number;
  readonly corrupt: number;
  readonly inFlightBytes: number;
  readonly waiting: number;
  readonly states: Counts<typeof PEER_STATES>;
  readonly breakers: Counts<typeof BREAKER_STATES>;
  readonly served: Counts<typeof SERVED_OUTCOMES>;
  readonly servedBytes: number;
  readonly lentBytes: number;
  readonly summaryBytes: number;
  readonly wrongSummaries: number;
  readonly announcements: Counts<readonly ["heard", "refused", "dropped"]>;
  /** Seconds since 1970. */
  readonly certificateEndsSeconds: number;
}

/** Writes the counters of fetching and serving to the registry. */
export function writePeers(registry: MetricRegistry, peers: PeersSnapshot): void {
  for (const outcome of PULL_OUTCOME_LABELS) {
    registry.set("quicPulls", peers.outcomes[outcome], { outcome });
  }
  for (const transport of TRANSPORT_LABELS) {
    const { blocks, bytes, fallbacks, inboundConnections } = peers.byTransport[transport];
    registry.set("peerBlocks", blocks, { transport });
    registry.set("peerBytes", bytes, { transport });
    registry.set("peerFallbacks", fallbacks, { transport });
    registry.set("peerInboundLinks", inboundConnections, { transport });
  }
  registry.set("peerHedges", peers.hedges, { outcome: "asked" });
  registry.set("peerHedges", peers.hedgesWon, { outcome: "won" });
  registry.set("peerSharedPulls", peers.sharedPulls);
  registry.set("peerCorrupt", peers.corrupt);
  registry.set("peerInFlightBytes", peers.inFlightBytes);
  registry.set("peerWaiting", peers.waiting);
  for (const state of PEER_STATES) registry.set("peers", peers.states[state], { state });
  for (const state of BREAKER_STATES)
    registry.set("peerBreakers", peers.breakers[state], { state });
  for (const outcome of SERVED_OUTCOMES) {
    registry.set("peerServed", peers.served[outcome], { outcome });
  }
  registry.set("peerServedBytes", peers.servedBytes);
  registry.set("peerLentBytes", peers.lentBytes);
  registry.set("peerSummaryBytes", peers.summaryBytes);
  registry.set("peerWrongSummaries", peers.wrongSummaries);
  for (const outcome of ["heard", "refused", "dropped"] as const) {
    registry.set("peerAnnouncements", peers.announcements[outcome], { outcome });
  }
  registry.set("peerCertificateEnds", peers.certificateEndsSeconds);
}
