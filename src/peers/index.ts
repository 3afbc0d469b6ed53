export * from "./directory/index.ts";
export * from "./fetcher/index.ts";
export type * from "./messages.ts";
export { PeerSource } from "./peer-source.ts";
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
export {
  RDMA_LIMITS,
  type RdmaLimits,
  RdmaTransport,
  type RdmaTransportOptions,
} from "./transports/rdma/index.ts";
export {
  acceptedCiphers,
  type CipherPolicy,
  type LaneShape,
  laneShape,
  STREAM_LIMITS,
  type StreamLimits,
  type StreamOptions,
  StreamTransport,
} from "./transports/stream/index.ts";
export * from "./trust/index.ts";
export type * from "./trust.ts";
