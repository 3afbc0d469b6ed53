export {
  BusPublisher,
  type BusPublisherOptions,
  type BusPublisherState,
  QueryHandler,
} from "./bus-publisher.ts";
export {
  EngineBatches,
  type EngineChange,
  TokenTable,
  type TokenTableOptions,
} from "./engine-batches.ts";
export {
  type EngineEndpoints,
  EngineMirror,
  EngineRank,
  type EngineRankOptions,
  type EngineRankState,
} from "./engine-rank.ts";
export { EngineBlockSet, joinDigests, type PublishedSet, storeBlocks } from "./published-sets.ts";
export {
  type BatchListener,
  ChangeRing,
  HostResidency,
  type HostResidencyOptions,
  ResidencyLog,
  type ResidencyLogOptions,
  type RingLimits,
} from "./residency-log.ts";
export { partOf, type Snapshot, Snapshots } from "./snapshots.ts";
export {
  StreamPublisher,
  type StreamPublisherOptions,
  type StreamPublisherState,
} from "./stream-publisher.ts";
export { ZmqPublisher, type ZmqPublisherOptions, type ZmqPublisherState } from "./zmq-publisher.ts";
