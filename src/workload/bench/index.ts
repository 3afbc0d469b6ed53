export {
  benchControl,
  type Carrier,
  type ControlBenchOptions,
  type ControlBenchResult,
  type Encoding,
  parentInTree,
} from "./control/index.ts";
export { benchDecide, type DecideBenchOptions, type DecideBenchResult } from "./decide/index.ts";
export { benchEngine, type EngineBenchOptions, type EngineBenchResult } from "./engine-bench.ts";
export { serveEngineBench, startBenchServer } from "./engine-server.ts";
export { benchGpu, type GpuBenchOptions, type GpuBenchResult } from "./gpu/index.ts";
export { benchHash, type HashBench } from "./hash-bench.ts";
export { type HttpLoadOptions, type HttpLoadResult, loadHttp } from "./http-load.ts";
export { benchIndex, type IndexBenchOptions, type IndexBenchResult } from "./index-bench.ts";
export {
  BENCH_TRANSPORTS,
  type BenchTransport,
  benchPeer,
  benchPeerPulls,
  benchResumption,
  Iperf,
  type PeerBenchOptions,
  type PeerPullsOptions,
  type PeerPullsRow,
  type PeerRow,
  type ResumptionRow,
  servePeerBench,
} from "./peer/index.ts";
export {
  benchPin,
  PIN_DEPTHS,
  PIN_TIERS,
  type PinBenchOptions,
  type PinRow,
  type PinTier,
  pinBlockBytes,
} from "./pin/index.ts";
export {
  benchPolicies,
  type PoliciesBench,
  type PoliciesBenchOptions,
  type PoliciesRow,
} from "./policies/index.ts";
export {
  benchPolicy,
  POLICY_NAMES,
  type PolicyBenchOptions,
  type PolicyName,
  type PolicyRow,
} from "./policy/index.ts";
export { benchPrefix, type PrefixBenchOptions, type PrefixBenchResult } from "./prefix/index.ts";
export { benchPythonClient } from "./python-client/index.ts";
export {
  benchRoute,
  ROUTE_POLICIES,
  type RouteBenchOptions,
  type RoutePolicy,
  type RouteRow,
} from "./route/index.ts";
export {
  benchSsdFiles,
  benchSsdSpeed,
  Fio,
  type SsdFilesOptions,
  type SsdFilesResult,
  type SsdSpeedOptions,
  type SsdSpeedResult,
  serveFilesBench,
} from "./ssd/index.ts";
export {
  benchTtft,
  TTFT_COMPUTES,
  TTFT_PROMPTS,
  TTFT_SHAPES,
  type TtftBenchOptions,
  type TtftRow,
  type TtftShape,
} from "./ttft/index.ts";
