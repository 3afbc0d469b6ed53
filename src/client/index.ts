export * from "./commands.ts";
export { type ConnectControlOptions, connectControl } from "./connect.ts";
export type {
  BroadcastResult,
  ControlClient,
  FoundWorker,
  SendOptions,
  SendResult,
  WireCommand,
} from "./control-client.ts";
export type { Encoding } from "./wire.ts";
