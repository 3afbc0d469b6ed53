export { BlockFlag, BlockOutcome, CommitFlag } from "../core/index.ts";
export { ArenaGrowth, type ArenaOptions, createArena } from "./arena.ts";
export { type ArenaPart, planArenaParts } from "./arena-parts.ts";
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
  Holder,
  HolderOptions,
  SessionStatus,
  SlotNames,
  SlotShare,
} from "./block-store.ts";
export { POLICIES, type PolicyName } from "./create-order.ts";
export {
  type Cause,
  DEPARTURES,
  type Departure,
  type DepartureReason,
  Departures,
  EVICTED,
} from "./departures.ts";
export { Announcements } from "./engines/announcements.ts";
export type { ClaimLimits, ClaimStats } from "./engines/claims.ts";
export type { EngineMember } from "./engines/engines.ts";
export type { Lookup } from "./engines/lookup.ts";
export { LookupSource } from "./engines/source.ts";
export type { LookupRank, LookupState, LookupWish } from "./engines/wish.ts";
export type { WaterMarks } from "./evictor.ts";
export type * from "./exchange/peer-blocks.ts";
export type { GpuMirror } from "./gpu-mirror.ts";
export { createInspector, type InspectorParts } from "./inspect/create-inspector.ts";
export type * from "./inspect/inspector.ts";
export type { CopyEnd, LentBlock, LentSlot } from "./lent-slot.ts";
export type { LifecycleLimits, LifecycleParts } from "./lifecycle/context.ts";
export { createLifecycle, type OwnLifecycle } from "./lifecycle/create-lifecycle.ts";
export type * from "./lifecycle/lifecycle.ts";
export { type NamedNodes, NameResolver } from "./lifecycle/resolve-names.ts";
export { type NamespaceFacts, Namespaces } from "./namespaces.ts";
export { type CreateOrder, createHearthOrder } from "./policy/index.ts";
export { type PurgeAddress, type PurgeOutcome, purgeBlocks } from "./purge.ts";
export { type RamCheckStats, ReportBudget } from "./ram-check.ts";
export { adoptRam, describeRam } from "./ram-handover.ts";
export { decodeRamRecord, encodeRamRecord, type RamRecord } from "./ram-record.ts";
export { RamScrub } from "./ram-scrub.ts";
export { type ResidencySlice, StoreResidency } from "./residency/store-residency.ts";
export type { PersistReport } from "./ssd/copies.ts";
export type { SsdCondition } from "./ssd/ssd-parts.ts";
export type { SsdSnapshot, SsdStats } from "./ssd/ssd-stats.ts";
export type { SsdSettings } from "./ssd/ssd-tier.ts";
export type { StoreStats } from "./stats.ts";
export {
  type Relieve,
  type SsdOptions,
  type StoreSnapshot,
  TieredStore,
  type TieredStoreOptions,
} from "./tiered-store.ts";
