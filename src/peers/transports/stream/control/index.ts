export {
  CONTROL_VERSION,
  type ControlKind,
  type ControlMessage,
  decodeControl,
  encodeControl,
} from "./control.ts";
