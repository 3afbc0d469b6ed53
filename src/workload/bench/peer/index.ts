export { Iperf } from "./iperf.ts";
export {
  BENCH_TRANSPORTS,
  type BenchTransport,
  benchPeer,
  type PeerBenchOptions,
  type PeerRow,
} from "./peer-bench.ts";
export { servePeerBench } from "./peer-child.ts";
export { benchPeerPulls, type PeerPullsOptions, type PeerPullsRow } from "./pulls-bench.ts";
export {
  benchResumption,
  measureResumption,
  type Resumption,
  type ResumptionRow,
} from "./resumption.ts";
export { UdpRelay, type UdpRelayOptions } from "./udp-relay.ts";
