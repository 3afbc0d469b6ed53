export type { Purged } from "./pin-expiry.ts";
export type { FindBlock, RememberedPins, Restored } from "./pin-records.ts";
export {
  HoldRegistry,
  type Holds,
  type PinRegistryOptions,
  subtreeHolders,
} from "./pin-registry.ts";
export type * from "./pin-table.ts";
export type * from "./pinned-bytes.ts";
export type * from "./pins.ts";
export { PIN_BLOCKS_PER_CALL } from "./pins.ts";
export * from "./sessions.ts";
