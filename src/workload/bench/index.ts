export { benchControl, type Encoding } from "./control/control-bench.ts";
export { parentInTree } from "./control/prune-bench.ts";
export { benchDecide } from "./decide-bench.ts";
export { benchEngine, serveEngineBench, startBenchServer } from "./engine-bench.ts";
export { benchGpu } from "./gpu-bench.ts";
export { benchHash } from "./hash-bench.ts";
export { benchIndex } from "./index-bench.ts";
export { loadHttp, rounded } from "./measure.ts";
export { BENCH_TRANSPORTS, benchPeer, benchPeerPulls, Iperf } from "./peer/peer-bench.ts";
export { servePeerBench } from "./peer/peer-child.ts";
export { benchResumption, measureResumption, UdpRelay } from "./peer/resumption.ts";
export { benchPin, PIN_DEPTHS, PIN_TIERS, pinBlockBytes } from "./pin-bench.ts";
export { benchPolicies, type PoliciesRow } from "./policies/policies-bench.ts";
export { readSimTrace } from "./policies/sim-trace.ts";
export { benchPolicy, POLICY_NAMES, type PolicyName, type PolicyRow } from "./policy-bench.ts";
export { benchPrefix } from "./prefix-bench.ts";
export { benchPythonClient } from "./python-client-bench.ts";
export { benchRoute, ROUTE_POLICIES, type RouteRow } from "./route-bench.ts";
export { LeafLru } from "./route-fleet.ts";
export { benchSsdFiles, serveFilesBench } from "./ssd/files-bench.ts";
export { benchSsdSpeed, Fio } from "./ssd/speed-bench.ts";
export {
  benchTtft,
  TTFT_COMPUTES,
  TTFT_PROMPTS,
  TTFT_SHAPES,
  type TtftShape,
} from "./ttft-bench.ts";
