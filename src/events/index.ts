export {
  ACTIVE_SEQUENCES_MAX,
  ACTIVE_SEQUENCES_TOPIC,
  type ActiveSequenceData,
  type ActiveSequenceEvent,
  decodeActiveSequences,
  encodeActiveSequences,
} from "./dynamo/active-sequences.ts";
export { type DynamoEnvelope, decodeEnvelope, encodeEnvelope } from "./dynamo/envelope.ts";
export {
  DYNAMO_SEED,
  localHash,
  mediaHash,
  saltSeed,
  sequenceHash,
  workerNumber,
} from "./dynamo/hashes.ts";
export {
  decodeRouterEvents,
  decodeWorkerAnswer,
  decodeWorkerQuery,
  encodeRouterEvents,
  encodeWorkerAnswer,
  encodeWorkerQuery,
  type RouterEvent,
  type WorkerAnswer,
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
export type { ReadResult } from "./fields.ts";
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
export {
  decodeAnswer,
  decodeQuery,
  decodeResidencyMessage,
  encodeAnswer,
  encodeBatch,
  encodeHeartbeat,
  encodeQuery,
  type ResidencyAnswer,
  type ResidencyMessage,
  type ResidencyQuery,
  type ResidencyRun,
  type ResidencySnapshotPart,
} from "./residency/codec.ts";
export {
  ANY,
  blocksIn,
  eventsSubject,
  queriesSubject,
  RESIDENCY_LIMITS,
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
