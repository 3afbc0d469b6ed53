export { ArenaRegistrar, type ArenaRegistrarOptions } from "./arena-registrar.ts";
export { type DirectFinding, type DirectOptions, probeDirect } from "./direct.ts";
export { counted, type Finding } from "./finding.ts";
export { cudaError, cudaVersion, gpuFinding, gpuName } from "./gpu-words.ts";
export {
  type GpuReport,
  HostGpus,
  type HostGpusOptions,
  type HostGpusReport,
} from "./host-gpus.ts";
export { hostMemoryNodes, nodesOf } from "./host-nodes.ts";
export {
  HostRdma,
  type HostRdmaOptions,
  type HostRdmaReport,
  type RdmaPortReport,
} from "./host-rdma.ts";
export { kernelRdmaDevices } from "./kernel-rdma.ts";
export { type GpuProbe, probeGpus, probeRdma, type RdmaProbe } from "./probe.ts";
export { portFinding, portName, rdmaFinding } from "./rdma-words.ts";
