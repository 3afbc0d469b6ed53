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
  type FeedCounts,
  type IngestChange,
  noCounts,
} from "./ingest/changes.ts";
export {
  EngineIngest,
  type EngineIngestListener,
  type EngineIngestOptions,
} from "./ingest/engine-ingest.ts";
export {
  type BlockName,
  blockNameOf,
  type NamedPrompt,
  PromptNames,
} from "./ingest/known-blocks.ts";
export {
  decodeSavedIngest,
  encodeSavedIngest,
  type SavedIngest,
  savedIngestPages,
} from "./ingest/saved-state.ts";
export { Translator, type TranslatorOptions } from "./ingest/translator.ts";
export { MsgpackReader, MsgpackWriter, Unreadable } from "./msgpack.ts";
export {
  decodeAnswer,
  decodeQuery,
  decodeResidencyMessage,
  encodeAnswer,
  encodeBatch,
  encodeHeartbeat,
  encodeQuery,
} from "./residency/codec.ts";
export {
  ANY,
  blocksIn,
  eventsSubject,
  queriesSubject,
  RESIDENCY_LIMITS,
  type ResidencyAnswer,
  type ResidencyMessage,
  type ResidencyQuery,
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
