export type { FeedChange } from "./change-list.ts";
export { DROP_REASONS, type DropReason, type FeedCounts, noCounts } from "./counts.ts";
export { EngineFeed, type EngineFeedListener, type EngineFeedOptions } from "./engine-feed.ts";
export { type BlockName, blockNameOf } from "./known-blocks.ts";
export { type NamedPrompt, PromptNames } from "./prompt-names.ts";
export { decodeFeed, encodeFeed, feedPages, type SavedFeed } from "./saved-feed.ts";
export { Translator, type TranslatorOptions } from "./translator.ts";
