export * from "./commands.ts";
export {
  type ConnectControlOptions,
  type ConnectHttpOptions,
  connectControl,
  connectHttp,
  type NatsAccess,
} from "./connect.ts";
export type {
  BroadcastResult,
  ControlClient,
  FoundWorker,
  SendOptions,
  SendResult,
  WireCommand,
} from "./control-client.ts";
export { newCommandId } from "./envelope.ts";
export type { HttpControlClient, ReadOptions, ReadResult } from "./http-client.ts";
export type { TlsMaterial } from "./http-connection.ts";
export { ENCODINGS, type Encoding } from "./wire.ts";
