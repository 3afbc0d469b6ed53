export {
  ASKED_HERE,
  type AskedIds,
  type AskedItem,
  AskedItems,
  type AskedItemsOptions,
  type AskedPull,
  AskerLink,
  type AskerLinkOptions,
  type AskerPayload,
  CROWDED,
  type Writers,
} from "./client-connection.ts";
export { type DialledLine, Dialling, dialLine, type LineDialOptions, type Step } from "./dial.ts";
export { LINE_LIMITS, type LineLimits } from "./limits.ts";
export {
  type DialledLink,
  Links,
  type LinksOptions,
  oldestOfMost,
  type TakeLink,
} from "./listener.ts";
export {
  type Codec,
  type CommonMessage,
  decodeCommon,
  encodeCommon,
  type Field,
  frame,
  isCommon,
  type LineEnd,
  type LineHandler,
  MessageLine,
} from "./message-connection.ts";
export {
  ANSWERED_HERE,
  BEFORE_HELLO,
  type LinkHost,
  type LinkRoom,
  type PullRequest,
  pullOf,
  type RunningPull,
  type Sender,
  ServedItems,
  type ServedItemsOptions,
  ServedLink,
  type ServedPayload,
} from "./server-connection.ts";
