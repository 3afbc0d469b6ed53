export { BusPublisher, type BusPublisherOptions, type BusPublisherState } from "./bus-publisher.ts";
export { ChangeRing, type RingLimits } from "./change-ring.ts";
export { EngineBatches } from "./engine-batches.ts";
export { EngineMirror } from "./engine-mirror.ts";
export {
  type EngineEndpoints,
  EngineRank,
  type EngineRankOptions,
  type EngineRankState,
} from "./engine-rank.ts";
export { type Held, heldByStore, joinDigests } from "./held.ts";
export { HeldChains } from "./held-chains.ts";
export { HostFeeds, type HostFeedsOptions } from "./host-feeds.ts";
export { QuestionDesk } from "./question-desk.ts";
export { type FeedListener, type FeedOptions, ResidencyFeed } from "./residency-feed.ts";
export { partOf, type Snapshot, Snapshots } from "./snapshots.ts";
export {
  StreamPublisher,
  type StreamPublisherOptions,
  type StreamPublisherState,
} from "./stream-publisher.ts";
export { type EngineChange, TokenBook, type TokenBookOptions } from "./token-book.ts";
export { ZmqPublisher, type ZmqPublisherOptions, type ZmqPublisherState } from "./zmq-publisher.ts";
