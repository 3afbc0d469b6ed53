export * from "./commands.ts";
export * from "./connect.ts";
export {
  type BroadcastResult,
  type ControlClient,
  ENCODINGS,
  type Encoding,
  type FoundWorker,
  newCommandId,
  type SendOptions,
  type SendResult,
  type WireCommand,
} from "./control-client.ts";
export type { HttpControlClient, ReadOptions, ReadResult, TlsMaterial } from "./http-client.ts";
