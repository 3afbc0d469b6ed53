export type { Purged } from "./pin-expiry.ts";
export type { FindBlock, RememberedHolds, Restored } from "./pin-records.ts";
export { HoldRegistry, type PinRegistryOptions, subtreeHolders } from "./pin-registry.ts";
export {
  type AddedHold,
  type BudgetFigures,
  type EndedHold,
  type EndedLease,
  type HoldInfo,
  type HoldKind,
  type HoldPage,
  type Holds,
  type MaybePromise,
  PIN_BLOCKS_PER_CALL,
  type PinLog,
  type PinRequest,
  type ReliefLevel,
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
