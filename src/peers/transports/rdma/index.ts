export { RDMA_LIMITS, type RdmaLimits } from "./limits.ts";
export { pairRails, type RailPair, usablePorts } from "./rails.ts";
export { RdmaTransport, type RdmaTransportOptions } from "./rdma-transport.ts";
