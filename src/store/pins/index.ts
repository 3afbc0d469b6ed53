export type { Purged } from "./expired-leases.ts";
export type { HoldLog } from "./hold-news.ts";
export { HoldRegistry, type HoldRegistryOptions } from "./hold-registry.ts";
export { holdersBelow } from "./holders-below.ts";
export type {
  AddedHold,
  BudgetFigures,
  EndedHold,
  EndedLease,
  HoldInfo,
  HoldKind,
  HoldPage,
  HoldRequest,
  Holds,
  ReliefLevel,
  Soon,
} from "./holds.ts";
export { HOLD_BLOCKS_A_CALL } from "./holds.ts";
export type { FindBlock, RememberedHolds, Restored } from "./restore-holds.ts";
export type {
  ListOptions,
  SessionInfo,
  SessionPage,
  SessionState,
  TierUse,
} from "./session-info.ts";
export { type SessionOutcome, Sessions } from "./sessions.ts";
