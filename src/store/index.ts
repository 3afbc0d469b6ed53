export { BlockFlag, BlockOutcome, CommitFlag } from "../core/index.ts";
export {
  ArenaGrowth,
  type ArenaOptions,
  type ArenaPart,
  createArena,
  planArenaParts,
} from "./arena.ts";
export {
  type AddressBatch,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
} from "./batches.ts";
export type {
  AcquireOptions,
  ArenaAccess,
  BlockStore,
  EngineSession,
  EngineSessionOptions,
  SessionStatus,
  SlotNames,
  SlotShare,
} from "./block-store.ts";
export {
  type Cause,
  DEPARTURES,
  type Departure,
  type DepartureReason,
  Departures,
  EVICTED,
} from "./departures.ts";
export type { ClaimLimits, ClaimStats } from "./engines/claims.ts";
export type { EngineMember } from "./engines/engines.ts";
export { Announcements } from "./engines/engines.ts";
export type { Lookup, LookupQuery, LookupRank, LookupState } from "./engines/lookup.ts";
export { LookupSource } from "./engines/source.ts";
export type * from "./exchange/peer-blocks.ts";
export type { PeerBlocks } from "./exchange/store-peer-blocks.ts";
export type { GpuMirror } from "./gpu-mirror.ts";
export type * from "./inspect/inspector.ts";
export { Inspector, type InspectorParts } from "./inspect/inspector.ts";
export type { LifecycleLimits, LifecycleParts } from "./lifecycle/context.ts";
export type * from "./lifecycle/lifecycle.ts";
export { createLifecycle, type OwnLifecycle } from "./lifecycle/lifecycle.ts";
export { type NamedNodes, NameResolver } from "./lifecycle/resolve-names.ts";
export { type NamespaceFacts, Namespaces } from "./namespaces.ts";
export { createHearthOrder } from "./policy/hearth-order.ts";
export {
  type CreateOrder,
  createLruOrder,
  POLICIES,
  type PolicyName,
  type VictimOrder,
} from "./policy/victim-order.ts";
export { type PurgeAddress, type PurgeOutcome, purgeBlocks } from "./purge.ts";
export { type RamCheckStats, RamScrub, ReportBudget } from "./ram-check.ts";
export {
  adoptRam,
  decodeRamRecord,
  describeRam,
  encodeRamRecord,
  type RamRecord,
} from "./ram-handover.ts";
export type { StoreStats, WaterMarks } from "./ram-tier.ts";
export { type ResidencySlice, StoreResidency } from "./residency.ts";
export type { CopyEnd, CopySlot, CopySource } from "./slot-refs.ts";
export type { PersistReport } from "./ssd/copies.ts";
export type { SsdCondition, SsdSnapshot, SsdStats } from "./ssd/ssd-parts.ts";
export type { SsdSettings } from "./ssd/ssd-tier.ts";
export {
  type EvictPins,
  type SsdOptions,
  type StoreSnapshot,
  TieredStore,
  type TieredStoreOptions,
} from "./tiered-store.ts";
