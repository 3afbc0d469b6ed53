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
