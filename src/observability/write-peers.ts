import {
  BREAKER_STATES,
  PEER_STATES,
  PULL_OUTCOME_LABELS,
  SERVED_OUTCOMES,
  TRANSPORT_LABELS,
} from "./catalogue-peers.ts";
import type { PeersSnapshot } from "./peer-snapshot.ts";
import type { MetricRegistry } from "./registry.ts";

/** Enters what pulling and serving count. */
export function writePeers(registry: MetricRegistry, peers: PeersSnapshot): void {
  for (const outcome of PULL_OUTCOME_LABELS) {
    registry.set("quicPulls", peers.outcomes[outcome], { outcome });
  }
  for (const transport of TRANSPORT_LABELS) {
    const { blocks, bytes, fallbacks, inboundLinks } = peers.byTransport[transport];
    registry.set("peerBlocks", blocks, { transport });
    registry.set("peerBytes", bytes, { transport });
    registry.set("peerFallbacks", fallbacks, { transport });
    registry.set("peerInboundLinks", inboundLinks, { transport });
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
