export {
  ANNOUNCED_NAMESPACES_MAX,
  ANNOUNCEMENT_BYTES_MAX,
  type Announcement,
  Announcer,
  type AnnouncerOptions,
  type AnnouncerStats,
  announcementSubject,
  encodeAnnouncement,
  type ReadAnnouncement,
  readAnnouncement,
  readHardware,
  withDevices,
} from "./announcement.ts";
export {
  BusLocator,
  type BusLocatorOptions,
  LOCATE_KEYS_MAX,
  LOCATE_SUBJECT,
  LOCATE_WORKERS_MAX,
} from "./block-locator.ts";
export {
  type BlockHolders,
  KnownPeers,
  type KnownPeersOptions,
  type Locator,
  type Members,
  type PeerRecord,
  type StaticPeer,
} from "./known-peers.ts";
export {
  Summaries,
  type SummariesOptions,
  type SummariesStats,
  type SummaryRequest,
} from "./summaries.ts";
