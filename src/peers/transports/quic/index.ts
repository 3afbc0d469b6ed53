export { AnswerSink } from "./client-connection.ts";
export { QUIC_LIMITS, type QuicLimits } from "./limits.ts";
export * from "./preface.ts";
export { type QuicOptions, QuicTransport } from "./quic-transport.ts";
export { GcPressure, loadQuic, type QuicModule } from "./runtime.ts";
