export {
  BusArchive,
  type BusArchiveOptions,
  BusListening,
  FirstArchive,
  forgetStream,
  type RangeAnswer,
  type ResidencyArchive,
  type ResidencyListener,
  requestSubject,
  type SnapshotAnswer,
  type SnapshotProvider,
  type SourceSnapshot,
  StoredSnapshots,
  StreamListening,
  sameDigests,
  takeResidency,
} from "./archive.ts";
export { EngineTarget, type EngineTargetOptions } from "./engine-target.ts";
export {
  INGEST_DEFAULTS,
  type IngestCounts,
  type IngestSettings,
  type IngestStats,
} from "./ingest-settings.ts";
export { type FollowedSource, type IngestOptions, ResidencyIngest } from "./residency-ingest.ts";
