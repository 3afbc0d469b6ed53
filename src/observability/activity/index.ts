export {
  EventLog,
  type EventPage,
  type HearthEvent,
  type NumberedEvent,
  type ToldEvent,
  toldEvent,
} from "./event-log.ts";
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
  RunningDigest,
} from "./residency.ts";
