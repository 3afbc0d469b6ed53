export {
  type AuditLog,
  type AuditLogOptions,
  type AuditRecord,
  createAuditLog,
} from "./audit-log.ts";
export { BLOCK_REASONS } from "./block-reasons.ts";
export { type BodyLimits, type DecodedBody, decodeBody, encodeBody } from "./body.ts";
export * from "./command.ts";
export { CommandMemory, receiptText } from "./command-memory.ts";
export type {
  ControlLimits,
  ControlPlane,
  ControlStats,
  SubmitOptions,
} from "./control-plane.ts";
export {
  type ControlSubscriber,
  type ControlSubscriberOptions,
  createControlSubscriber,
  type SubscriberStats,
} from "./control-subscriber.ts";
export { type ControlPlaneOptions, createControlPlane } from "./create-control-plane.ts";
export { type CommandHead, type DecodedCommand, decodeCommand } from "./decode-command.ts";
export {
  answerTypeOf,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  mediaTypeOf,
} from "./media-type.ts";
export type { Operation } from "./operation.ts";
export type { BoundIssuer } from "./prove-issuer.ts";
export { readReceipt } from "./read-receipt.ts";
export * from "./receipt.ts";
export { decodeReceipt, encodeReceipt } from "./receipt-codec.ts";
export { REFUSALS, type Refusal, type RefusalWord, reasonOf } from "./refusals.ts";
export { type Running, RunningCommands } from "./running.ts";
export {
  ALL_WORKERS,
  CLOCK_SKEW_SECONDS,
  SIGNED_SECONDS_MAX,
  signCommand,
  signedBytes,
} from "./signature.ts";
export {
  BROADCAST_SUBJECT,
  ISSUER_NAME,
  issuerSubject,
  REPLY_HEADER,
  SERVICE_NAME,
  SIGNATURE_HEADER,
  workerSubject,
} from "./subjects.ts";
export { CONTROL_STOP_MS } from "./within.ts";
