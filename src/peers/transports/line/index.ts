export {
  type AskedItem,
  AskedItems,
  type AskedItemsOptions,
  CROWDED,
  type Writers,
} from "./asked-items.ts";
export {
  ASKED_HERE,
  type AskedIds,
  type AskedPull,
  AskerLink,
  type AskerLinkOptions,
  type AskerPayload,
} from "./asker-link.ts";
export {
  type CommonMessage,
  decodeCommon,
  encodeCommon,
  isCommon,
} from "./common-messages.ts";
export {
  type DialledLine,
  Dialling,
  dialLine,
  type LineDialOptions,
  type Step,
} from "./dialling.ts";
export { type Field, frame } from "./framing.ts";
export { LINE_LIMITS, type LineLimits } from "./limits.ts";
export {
  type DialledLink,
  Links,
  type LinksOptions,
  oldestOfMost,
  type TakeLink,
} from "./links.ts";
export type { Codec, LineEnd, LineHandler } from "./message-line.ts";
export { MessageLine } from "./message-line.ts";
export { type Sender, ServedItems, type ServedItemsOptions } from "./served-items.ts";
export {
  ANSWERED_HERE,
  BEFORE_HELLO,
  type LinkHost,
  type LinkRoom,
  type PullRequest,
  pullOf,
  type RunningPull,
  ServedLink,
  type ServedPayload,
} from "./served-link.ts";
