export { AnswerSink } from "./answer-sink.ts";
export { QUIC_LIMITS, type QuicLimits } from "./limits.ts";
export { Litter } from "./litter.ts";
export { loadQuic, type QuicModule } from "./module.ts";
export {
  encodePreface,
  isProof,
  makeProof,
  PADDING_BYTES_MAX,
  PROOF_BYTES_MAX,
  PrefaceReader,
} from "./preface.ts";
export { type QuicOptions, QuicTransport } from "./quic-transport.ts";
