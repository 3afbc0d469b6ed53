export {
  type BlockRef,
  type EnvelopeMembers,
  flush,
  type OwnedMembers,
  pause,
  pin,
  prune,
  renewLease,
  retain,
  revokeLease,
  think,
  unpin,
  type WarmTarget,
  warm,
} from "./commands.ts";
export {
  type ConnectControlOptions,
  type ConnectHttpOptions,
  connectControl,
  connectHttp,
  type NatsAccess,
} from "./connect.ts";
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
