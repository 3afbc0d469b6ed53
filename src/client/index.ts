export * from "./commands.ts";
export {
  type ConnectControlOptions,
  type ConnectHttpOptions,
  connectControl,
  connectHttp,
} from "./connect.ts";
export type {
  BroadcastResult,
  ControlClient,
  FoundWorker,
  SendOptions,
  SendResult,
  WireCommand,
} from "./control-client.ts";
export type { HttpControlClient, ReadOptions, ReadResult } from "./http-client.ts";
export type { TlsMaterial } from "./http-connection.ts";
export type { Encoding } from "./wire.ts";
