export { ArenaRegistrar } from "./arena-registrar.ts";
export { type DirectFinding, probeDirect } from "./direct.ts";
export { cudaError, cudaVersion, gpuFinding, HostGpus, type HostGpusReport } from "./host-gpus.ts";
export {
  HostRdma,
  type HostRdmaReport,
  kernelRdmaDevices,
  portFinding,
  portName,
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
