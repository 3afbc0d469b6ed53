export type * from "./active-load.ts";
export type * from "./commander.ts";
export {
  createPromptHasher,
  createRouter,
  type PromptHasher,
  prefillId,
  type RouterParts,
  tokenSalt,
} from "./core/index.ts";
export { createPrefixIndex, type PrefixIndexOptions, ReferenceIndex } from "./index/index.ts";
export {
  askedAt,
  BusArchive,
  type BusArchiveOptions,
  BusListening,
  EngineTarget,
  type FollowedSource,
  INTAKE_DEFAULTS,
  type IntakeOptions,
  type IntakeSettings,
  type IntakeStats,
  ResidencyIntake,
} from "./intake/index.ts";
export type { KeeperStats, RestoreOutcome } from "./keeping/index.ts";
export { type ActiveLoadOptions, createActiveLoad } from "./load/index.ts";
export { LOCATE_SUBJECT, LocateService, type LocateStats } from "./locate/index.ts";
export {
  type BlockNamer,
  type CacheMark,
  createDigestNamer,
  createPolicies,
  POLICY_DEFAULTS,
  POLICY_NAMES,
  type Policies,
  type PoliciesOptions,
  type PolicyCounts,
  type PolicyMarks,
  type PolicyMode,
  type PolicyName,
  type PolicySettings,
  PromptChain,
  type ReasoningTokens,
} from "./policies/index.ts";
export type * from "./prefix-index.ts";
export { REPLICA_DEFAULTS, type ReplicaSettings, type ReplicaStats } from "./replicas/index.ts";
export type * from "./route.ts";
export * from "./settings.ts";
export { createWorkerTable, type WorkerTableOptions } from "./table/index.ts";
export { RouterUpkeep, type UpkeepOptions } from "./upkeep/index.ts";
export type * from "./workers.ts";
