export {
  type DynamoEnvelope,
  decodeEnvelope,
  decodeRouterEvents,
  encodeEnvelope,
  encodeRouterEvents,
  type MediaObject,
  type ReadResult,
  ROUTER_BLOCKS_MAX,
  ROUTER_EVENTS_MAX,
  type RouterEvent,
  type RouterEventData,
  STORAGE_TIERS,
  type StorageTier,
  workerNumber,
} from "./dynamo/index.ts";
export type * from "./engine-event.ts";
export * from "./residency/index.ts";
