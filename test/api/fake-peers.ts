import type { PeerServices, PeersReport, PullsReport } from "../../src/api/index.ts";
import type { BlockName } from "../../src/core/index.ts";

/** Fake peer services. By default peers are disabled, as without [peers]. */
export class FakePeers implements PeerServices {
  readonly asked: { readonly name: BlockName | null; readonly max: number }[] = [];
  told: PeersReport = {
    enabled: false,
    cluster: null,
    certificate_ends: null,
    listening: {},
    inbound_links: 0,
    lent_bytes: 0,
    in_flight_bytes: 0,
    peers: [],
  };
  traces: PullsReport = { pulls: [] };

  report(): PeersReport {
    return this.told;
  }

  pulls(name: BlockName | null, max: number): PullsReport {
    this.asked.push({ name, max });
    return this.traces;
  }
}
