export {
  askedAt,
  BusArchive,
  type BusArchiveOptions,
  BusListening,
  FirstArchive,
  forgetStream,
  type Picture,
  type PictureAnswer,
  type PictureGiver,
  type RangeAnswer,
  type ResidencyArchive,
  type ResidencyListener,
  StoredPictures,
  StreamListening,
  sameDigests,
  takeResidency,
} from "./archive.ts";
export { EngineTarget, type EngineTargetOptions } from "./engine-target.ts";
export {
  INTAKE_DEFAULTS,
  type IntakeCounts,
  type IntakeSettings,
  type IntakeStats,
} from "./ingest-settings.ts";
export { type FollowedSource, type IntakeOptions, ResidencyIntake } from "./residency-ingest.ts";
