export * from "./directory/index.ts";
export * from "./fetcher/index.ts";
export type * from "./messages.ts";
export * from "./server/index.ts";
export * from "./transport.ts";
export * from "./transports/measured.ts";
export {
  loadQuic,
  QUIC_LIMITS,
  type QuicLimits,
  type QuicOptions,
  QuicTransport,
} from "./transports/quic/index.ts";
export * from "./transports/rdma/rdma-transport.ts";
export * from "./transports/stream/stream-transport.ts";
export * from "./trust/index.ts";
export type * from "./trust.ts";
