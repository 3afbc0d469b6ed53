export {
  type Announcement,
  encodeAnnouncement,
  isRouterId,
  newRouterId,
  ReplicaTable,
  type RouterId,
  readAnnouncement,
} from "./announcement.ts";
export {
  encodeLoadEvents,
  encodeOutput,
  readLoadEvents,
  readOutput,
  replicaSubjects,
} from "./load-codec.ts";
export {
  REPLICA_DEFAULTS,
  ReplicaGroup,
  type ReplicaGroupOptions,
  type ReplicaSettings,
  type ReplicaStats,
} from "./replica-group.ts";
