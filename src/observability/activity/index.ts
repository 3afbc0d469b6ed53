export { EventLog } from "./event-log.ts";
export {
  type EventPage,
  type HearthEvent,
  type NumberedEvent,
  type ToldEvent,
  toldEvent,
} from "./events.ts";
export {
  type KeySpace,
  mixHash,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyDigest,
  type ResidencyHeartbeat,
  type ResidencySource,
  type ResidencyTier,
} from "./residency.ts";
export { RunningDigest } from "./running-digest.ts";
