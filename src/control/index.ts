export { AuditLog, type AuditRecord, CONTROL_STOP_MS } from "./audit-log.ts";
export {
  ALL_WORKERS,
  type BoundIssuer,
  CLOCK_SKEW_SECONDS,
  SIGNED_SECONDS_MAX,
  signCommand,
  signedBytes,
} from "./authorize.ts";
export * from "./command.ts";
export { CommandMemory, type Running, RunningCommands, receiptText } from "./command-memory.ts";
export * from "./control-plane.ts";
export * from "./control-subscriber.ts";
export {
  answerTypeOf,
  type CommandHead,
  type DecodedCommand,
  decodeBody,
  decodeCommand,
  encodeBody,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  mediaTypeOf,
} from "./decode-command.ts";
export * from "./receipt.ts";
