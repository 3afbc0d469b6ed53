export type { Carrier } from "./control/agent-host.ts";
export {
  benchControl,
  type ControlBenchOptions,
  type ControlBenchResult,
  type Encoding,
} from "./control/control-bench.ts";
export { parentInTree } from "./control/prune-bench.ts";
export { benchDecide, type DecideBenchOptions, type DecideBenchResult } from "./decide-bench.ts";
export {
  benchEngine,
  type EngineBenchOptions,
  type EngineBenchResult,
  serveEngineBench,
  startBenchServer,
} from "./engine-bench.ts";
export { benchGpu, type GpuBenchOptions, type GpuBenchResult } from "./gpu-bench.ts";
export { benchHash, type HashBench } from "./hash-bench.ts";
export { benchIndex, type IndexBenchOptions, type IndexBenchResult } from "./index-bench.ts";
export { type HttpLoadOptions, type HttpLoadResult, loadHttp } from "./measure.ts";
export {
  BENCH_TRANSPORTS,
  type BenchTransport,
  benchPeer,
  benchPeerPulls,
  Iperf,
  type PeerBenchOptions,
  type PeerPullsOptions,
  type PeerPullsRow,
  type PeerRow,
} from "./peer/peer-bench.ts";
export { servePeerBench } from "./peer/peer-child.ts";
export {
  benchResumption,
  measureResumption,
  type ResumptionRow,
  UdpRelay,
} from "./peer/resumption.ts";
export {
  benchPin,
  PIN_DEPTHS,
  PIN_TIERS,
  type PinBenchOptions,
  type PinRow,
  type PinTier,
  pinBlockBytes,
} from "./pin-bench.ts";
export {
  benchPolicies,
  type PoliciesBench,
  type PoliciesBenchOptions,
  type PoliciesRow,
} from "./policies/policies-bench.ts";
export { readSimTrace } from "./policies/sim-trace.ts";
export {
  benchPolicy,
  POLICY_NAMES,
  type PolicyBenchOptions,
  type PolicyName,
  type PolicyRow,
} from "./policy-bench.ts";
export { benchPrefix, type PrefixBenchOptions, type PrefixBenchResult } from "./prefix-bench.ts";
export { benchPythonClient } from "./python-client-bench.ts";
export {
  benchRoute,
  ROUTE_POLICIES,
  type RouteBenchOptions,
  type RoutePolicy,
  type RouteRow,
} from "./route-bench.ts";
export { LeafLru } from "./route-fleet.ts";
export {
  benchSsdFiles,
  type SsdFilesOptions,
  type SsdFilesResult,
  serveFilesBench,
} from "./ssd/files-bench.ts";
export {
  benchSsdSpeed,
  Fio,
  type SsdSpeedOptions,
  type SsdSpeedResult,
} from "./ssd/speed-bench.ts";
export {
  benchTtft,
  TTFT_COMPUTES,
  TTFT_PROMPTS,
  TTFT_SHAPES,
  type TtftBenchOptions,
  type TtftRow,
  type TtftShape,
} from "./ttft-bench.ts";
