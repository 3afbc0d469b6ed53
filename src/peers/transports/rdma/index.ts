export { RDMA_LIMITS, type RdmaLimits } from "./limits.ts";
export { RdmaTransport, type RdmaTransportOptions } from "./rdma-transport.ts";
