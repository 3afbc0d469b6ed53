export {
  ANNOUNCED_NAMESPACES_MAX,
  ANNOUNCEMENT_BYTES_MAX,
  type Announcement,
  encodeAnnouncement,
  membersSubject,
  type ReadAnnouncement,
  readAnnouncement,
} from "./announcement.ts";
export { Announcer, type AnnouncerOptions, type AnnouncerStats } from "./announcer.ts";
export {
  BusLocator,
  type BusLocatorOptions,
  LOCATE_KEYS_MAX,
  LOCATE_SUBJECT,
  LOCATE_WORKERS_MAX,
} from "./bus-locator.ts";
export type { Locator, Members, PeerRecord, Whereabouts } from "./directory.ts";
export { KnownMembers, type KnownMembersOptions, type ListedMember } from "./known-members.ts";
export {
  Summaries,
  type SummariesOptions,
  type SummariesStats,
  type SummaryRequest,
} from "./summaries.ts";
