export {
  ACTIVE_SEQUENCES_MAX,
  ACTIVE_SEQUENCES_TOPIC,
  type ActiveSequenceData,
  type ActiveSequenceEvent,
  type DynamoEnvelope,
  decodeActiveSequences,
  decodeEnvelope,
  decodeRouterEvents,
  encodeActiveSequences,
  encodeEnvelope,
  encodeRouterEvents,
  localHash,
  localHashes,
  type MediaObject,
  mediaHash,
  type ReadResult,
  ROUTER_BLOCKS_MAX,
  ROUTER_EVENTS_MAX,
  type RouterEvent,
  type RouterEventData,
  STORAGE_TIERS,
  type StorageTier,
  saltSeed,
  sequenceHash,
  sequenceHashes,
  workerNumber,
  xxh3,
  xxh3Literal,
} from "./dynamo/index.ts";
export { decodeEngineBatch, ENGINE_BATCH_LIMITS, encodeEngineBatch } from "./engine/index.ts";
export type * from "./engine-event.ts";
export * from "./feed/index.ts";
export * from "./residency/index.ts";
