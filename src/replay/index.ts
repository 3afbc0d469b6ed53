export { type ReplayOptions, replay, replayManifest } from "./replay.ts";
export { type ReplaySummary, ReplayTally, summarise } from "./tally.ts";
