export { Members } from "./members.ts";
export {
  REPLICA_DEFAULTS,
  ReplicaGroup,
  type ReplicaGroupOptions,
  type ReplicaSettings,
  type ReplicaStats,
} from "./replica-group.ts";
export { newRouterId, type RouterId } from "./router-id.ts";
export { replicaSubjects } from "./subjects.ts";
