export {
  EventLog,
  type EventPage,
  type HearthEvent,
  type NumberedEvent,
  type PublishedEvent,
  publishedEvent,
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
