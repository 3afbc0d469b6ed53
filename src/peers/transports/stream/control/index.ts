export {
  CONTROL_VERSION,
  type ControlKind,
  type ControlMessage,
  decodeControl,
  encodeControl,
  STREAM_CODEC,
  type StreamMessage,
} from "./control.ts";
