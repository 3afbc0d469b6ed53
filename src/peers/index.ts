export * from "./directory/index.ts";
export { readHardware, withDevices } from "./hardware.ts";
export type * from "./messages.ts";
export * from "./pull/index.ts";
export * from "./serve/index.ts";
export * from "./transport.ts";
export * from "./transports/measured.ts";
export {
  loadQuic,
  QUIC_LIMITS,
  type QuicLimits,
  type QuicOptions,
  QuicTransport,
} from "./transports/quic/index.ts";
export {
  RDMA_LIMITS,
  type RdmaLimits,
  RdmaTransport,
  type RdmaTransportOptions,
} from "./transports/rdma/index.ts";
export * from "./transports/stream/index.ts";
export * from "./trust/index.ts";
export type * from "./trust.ts";
