export {
  type Announcement,
  encodeAnnouncement,
  isRouterId,
  newRouterId,
  ReplicaTable,
  type RouterId,
  readAnnouncement,
} from "./announcement.ts";
export { encodeNews, encodeOutput, readNews, readOutput, replicaSubjects } from "./load-codec.ts";
export {
  REPLICA_DEFAULTS,
  ReplicaGroup,
  type ReplicaGroupOptions,
  type ReplicaSettings,
  type ReplicaStats,
} from "./replica-group.ts";
