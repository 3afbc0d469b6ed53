export {
  CONTROL_VERSION,
  decodeControl,
  encodeControl,
  type PairedRail,
  RAILS_MAX,
  type Rail,
  RDMA_CODEC,
  type RdmaControl,
  type RdmaMessage,
} from "./control.ts";
export { pairRails, type RailPair, usablePorts } from "./ports.ts";
export {
  RDMA_LIMITS,
  type RdmaLimits,
  RdmaTransport,
  type RdmaTransportOptions,
} from "./rdma-transport.ts";
