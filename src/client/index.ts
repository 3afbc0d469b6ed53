export type {
  BroadcastResult,
  ControlClient,
  SendOptions,
  SendResult,
  WireCommand,
} from "./control-client.ts";
