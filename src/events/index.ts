export {
  ACTIVE_SEQUENCES_MAX,
  ACTIVE_SEQUENCES_TOPIC,
  type ActiveSequenceData,
  type ActiveSequenceEvent,
  decodeActiveSequences,
  encodeActiveSequences,
} from "./dynamo/active-sequences.ts";
export {
  type DynamoEnvelope,
  decodeEnvelope,
  encodeEnvelope,
  type ReadResult,
} from "./dynamo/envelope.ts";
export {
  localHash,
  localHashes,
  mediaHash,
  saltSeed,
  sequenceHash,
  sequenceHashes,
  workerNumber,
  xxh3,
  xxh3Literal,
} from "./dynamo/hashes.ts";
export {
  decodeRouterEvents,
  decodeWorkerAnswer,
  decodeWorkerQuery,
  encodeRouterEvents,
  encodeWorkerAnswer,
  encodeWorkerQuery,
  type MediaObject,
  ROUTER_BLOCKS_MAX,
  ROUTER_EVENTS_MAX,
  type RouterEvent,
  type RouterEventData,
  STORAGE_TIERS,
  type StorageTier,
  type WorkerAnswer,
  type WorkerQuery,
} from "./dynamo/router-events.ts";
export {
  type BlockExtras,
  decodeEngineBatch,
  ENGINE_BATCH_LIMITS,
  type EngineBatch,
  type EngineEvent,
  type EngineHash,
  encodeEngineBatch,
  type KvGroup,
} from "./engine-events.ts";
export {
  DROP_REASONS,
  type DropReason,
  type FeedChange,
  type FeedCounts,
  noCounts,
} from "./ingest/changes.ts";
export {
  EngineFeed,
  type EngineIngestListener,
  type EngineIngestOptions,
} from "./ingest/engine-ingest.ts";
export {
  type BlockName,
  blockNameOf,
  type NamedPrompt,
  PromptNames,
} from "./ingest/known-blocks.ts";
export { decodeFeed, encodeSavedIngest, feedPages, type SavedFeed } from "./ingest/saved-state.ts";
export { Translator, type TranslatorOptions } from "./ingest/translator.ts";
export { MsgpackReader, MsgpackWriter, Unreadable } from "./msgpack.ts";
export {
  decodeAnswer,
  decodeQuestion,
  decodeResidencyMessage,
  encodeAnswer,
  encodeBatch,
  encodeHeartbeat,
  encodeQuestion,
} from "./residency/codec.ts";
export {
  ANY,
  blocksIn,
  eventsSubject,
  questionsSubject,
  RESIDENCY_LIMITS,
  type ResidencyAnswer,
  type ResidencyMessage,
  type ResidencyQuestion,
  type ResidencyRun,
  type ResidencySnapshotPart,
  type SubjectOf,
} from "./residency/messages.ts";
export {
  decodeStoredSnapshot,
  encodeStoredSnapshot,
  eventsStream,
  fitRange,
  liveBlocksMax,
  snapshotBucket,
  snapshotObject,
  snapshotParts,
  splitBatch,
  splitChange,
} from "./residency/snapshot-parts.ts";
