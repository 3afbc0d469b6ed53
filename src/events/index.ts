export * from "./dynamo/active-sequences.ts";
export { type DynamoEnvelope, decodeEnvelope, encodeEnvelope } from "./dynamo/envelope.ts";
export * from "./dynamo/hashes.ts";
export * from "./dynamo/router-events.ts";
export * from "./engine-events.ts";
export type { ReadResult } from "./fields.ts";
export {
  DROP_REASONS,
  type DropReason,
  type IngestChange,
  type IngestCounts,
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
export * from "./ingest/saved-state.ts";
export { Translator, type TranslatorOptions } from "./ingest/translator.ts";
export * from "./residency/codec.ts";
export * from "./residency/messages.ts";
export * from "./residency/snapshot-parts.ts";
