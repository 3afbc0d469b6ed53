export type { Purged } from "./pin-expiry.ts";
export type { FindBlock, RememberedPins, Restored } from "./pin-records.ts";
export { HoldRegistry, type Holds, type PinRegistryOptions, subtreeHolders } from "./pin-registry.ts";
export {
  type AddedPin,
  type BudgetFigures,
  type EndedLease,
  type EndedPin,
  type MaybePromise,
  PIN_BLOCKS_PER_CALL,
  type PinEvictionLevel,
  type PinInfo,
  type PinKind,
  type PinLog,
  type PinPage,
  type PinRequest,
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
