export type { FeedChange } from "./change-list.ts";
export { DROP_REASONS, type DropReason, type FeedCounts, noCounts } from "./counts.ts";
export { EngineFeed, type EngineFeedListener, type EngineFeedOptions } from "./engine-feed.ts";
export { Translator, type TranslatorOptions } from "./translator.ts";
