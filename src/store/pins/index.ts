export type { Purged } from "./pin-expiry.ts";
export type { FindBlock, RememberedHolds, Restored } from "./pin-records.ts";
export { HoldRegistry, type HoldRegistryOptions, holdersBelow } from "./pin-registry.ts";
export {
  type AddedHold,
  type BudgetFigures,
  type EndedHold,
  type EndedLease,
  HOLD_BLOCKS_A_CALL,
  type HoldInfo,
  type HoldKind,
  type HoldLog,
  type HoldPage,
  type HoldRequest,
  type Holds,
  type ReliefLevel,
  type Soon,
} from "./pins.ts";
export {
  type ListOptions,
  type SessionInfo,
  type SessionOutcome,
  type SessionPage,
  type SessionState,
  Sessions,
  type TierUse,
} from "./sessions.ts";
