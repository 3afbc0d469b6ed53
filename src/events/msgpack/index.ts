export { type MsgpackKind, MsgpackReader, Unreadable } from "./reader.ts";
export { MsgpackWriter } from "./writer.ts";
