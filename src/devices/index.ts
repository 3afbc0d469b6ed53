export { ArenaRegistrar, type ArenaRegistrarOptions } from "./arena-registrar.ts";
export { type DirectFinding, type DirectOptions, probeDirect } from "./direct.ts";
export {
  cudaError,
  cudaVersion,
  type GpuReport,
  gpuFinding,
  gpuName,
  HostGpus,
  type HostGpusOptions,
  type HostGpusReport,
} from "./host-gpus.ts";
export {
  HostRdma,
  type HostRdmaOptions,
  type HostRdmaReport,
  kernelRdmaDevices,
  portFinding,
  portName,
  type RdmaPortReport,
  rdmaFinding,
} from "./host-rdma.ts";
export {
  counted,
  type Finding,
  type GpuProbe,
  hostMemoryNodes,
  nodesOf,
  probeGpus,
  probeRdma,
  type RdmaProbe,
} from "./probe.ts";
