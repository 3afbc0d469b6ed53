export { askedAt, BusArchive, type BusArchiveOptions } from "./bus-archive.ts";
export { BusListening, takeResidency } from "./bus-listening.ts";
export { sameDigests } from "./digest.ts";
export { EngineTarget, type EngineTargetOptions } from "./engine-target.ts";
export type {
  Picture,
  PictureAnswer,
  RangeAnswer,
  ResidencyArchive,
  ResidencyListener,
} from "./feed.ts";
export { FirstArchive, type PictureGiver } from "./first-archive.ts";
export { type FollowedSource, type IntakeOptions, ResidencyIntake } from "./intake.ts";
export { INTAKE_DEFAULTS, type IntakeSettings } from "./settings.ts";
export type { IntakeCounts, IntakeStats } from "./stats.ts";
export { StoredPictures } from "./stored-pictures.ts";
export { forgetStream, StreamListening } from "./stream-listening.ts";
