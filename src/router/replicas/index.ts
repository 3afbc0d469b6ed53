export { type Announcement, encodeAnnouncement, readAnnouncement } from "./announcement.ts";
export { encodeNews, encodeOutput, readNews, readOutput } from "./load-codec.ts";
export { Members } from "./members.ts";
export {
  REPLICA_DEFAULTS,
  ReplicaGroup,
  type ReplicaGroupOptions,
  type ReplicaSettings,
  type ReplicaStats,
} from "./replica-group.ts";
export { isRouterId, newRouterId, type RouterId } from "./router-id.ts";
export { replicaSubjects } from "./subjects.ts";
