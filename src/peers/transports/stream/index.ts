export { acceptedCiphers, type CipherPolicy } from "./ciphers.ts";
export { type LaneShape, laneShape } from "./lane-shape.ts";
export { STREAM_LIMITS, type StreamLimits } from "./limits.ts";
export { type StreamOptions, StreamTransport } from "./stream-transport.ts";
