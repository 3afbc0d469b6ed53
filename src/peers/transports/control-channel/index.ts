export {
  ClientConnection,
  type ClientConnectionOptions,
  type ClientPayload,
  type ClientPull,
  OVERLOADED,
  type RequestedItem,
  RequestedItems,
  type RequestedItemsOptions,
  type RequestIds,
  UNEXPECTED_REQUEST,
  type Writers,
} from "./client-connection.ts";
export {
  type ChannelEnd,
  type ChannelHandler,
  type Codec,
  type CommonMessage,
  ControlChannel,
  decodeCommon,
  encodeCommon,
  type Field,
  frame,
  isCommon,
} from "./control-channel.ts";
export {
  type ChannelDialOptions,
  type DialledChannel,
  Dialling,
  dialChannel,
  type Step,
} from "./dial.ts";
export { CHANNEL_LIMITS, type ChannelLimits } from "./limits.ts";
export {
  type AcceptConnection,
  ConnectionTable,
  type ConnectionTableOptions,
  type DialledConnection,
  oldestOfMost,
} from "./listener.ts";
export {
  BEFORE_HELLO,
  type ConnectionContext,
  type ConnectionHost,
  type PullRequest,
  pullOf,
  type RunningPull,
  type Sender,
  ServedItems,
  type ServedItemsOptions,
  ServerConnection,
  type ServerPayload,
  UNEXPECTED_ANSWER,
} from "./server-connection.ts";
