export * from "./active-load.ts";
export { IndexSync, type IndexSyncOptions } from "./index-sync.ts";
export {
  BusArchive,
  type BusArchiveOptions,
  BusListening,
  EngineTarget,
  type FollowedSource,
  INGEST_DEFAULTS,
  type IngestOptions,
  type IngestSettings,
  type IngestStats,
  ResidencyIngest,
  requestSubject,
} from "./ingest/index.ts";
export {
  LOCATE_KEYS_MAX,
  LOCATE_SUBJECT,
  LocateService,
  type LocateStats,
  readQuestion,
} from "./locate.ts";
export { createPrefixIndex, type PrefixIndexOptions } from "./native-index.ts";
export {
  type BlockNamer,
  type CacheMark,
  type Commander,
  type CommandOutcome,
  createDigestNamer,
  createPolicies,
  POLICY_DEFAULTS,
  POLICY_NAMES,
  type Policies,
  type PoliciesOptions,
  type PolicyCommand,
  type PolicyCounts,
  type PolicyMarks,
  type PolicyMode,
  type PolicyName,
  type PolicySettings,
  PromptChain,
  type ReasoningTokens,
} from "./policies/index.ts";
export { PredictedPrefixes } from "./predicted-prefixes.ts";
export type * from "./prefix-index.ts";
export { HashSlots } from "./prefix-runs.ts";
export { REPLICA_DEFAULTS, type ReplicaSettings, type ReplicaStats } from "./replicas/index.ts";
export type * from "./route.ts";
export * from "./route-counts.ts";
export {
  createPromptHasher,
  createRouter,
  type PromptHasher,
  prefillId,
  type RouterParts,
  tokenSalt,
} from "./scheduling/index.ts";
export * from "./settings.ts";
export {
  encodeState,
  type RestoreOutcome,
  readState,
  type SavedState,
  type SnapshotStoreStats,
} from "./snapshot-store.ts";
export * from "./workers.ts";
