export {
  CONTROL_VERSION,
  type ControlKind,
  type ControlMessage,
  decodeControl,
  encodeControl,
  STREAM_CODEC,
  type StreamMessage,
} from "./control.ts";
export {
  acceptedCiphers,
  type CipherPolicy,
  type LaneShape,
  laneShape,
  STREAM_LIMITS,
  type StreamLimits,
  type StreamOptions,
  StreamTransport,
} from "./stream-transport.ts";
