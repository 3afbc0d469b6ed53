export {
  ACTIVE_SEQUENCES_MAX,
  ACTIVE_SEQUENCES_TOPIC,
  type ActiveSequenceData,
  type ActiveSequenceEvent,
  decodeActiveSequences,
  encodeActiveSequences,
  type HearthSequence,
} from "./active-sequences.ts";
export {
  type DynamoEnvelope,
  decodeEnvelope,
  ENVELOPE,
  encodeEnvelope,
  envelopeOf,
  inSteps,
  type Members,
  memberSteps,
  orNil,
  present,
  type ReadResult,
  reading,
  readMembers,
} from "./envelope.ts";
export {
  localHash,
  localHashes,
  mediaHash,
  saltSeed,
  saltShare,
  sequenceHash,
  sequenceHashes,
} from "./hashes.ts";
export {
  decodeRouterEvents,
  encodeRouterEvents,
  type MediaObject,
  ROUTER_BLOCKS_MAX,
  ROUTER_EVENT_LIMITS,
  ROUTER_EVENTS_MAX,
  type RouterEvent,
  type RouterEventData,
  type RouterEventLimits,
  readRouterEvents,
  STORAGE_TIERS,
  type StorageTier,
} from "./router-events.ts";
export { sipHash13, workerNumber } from "./siphash.ts";
export {
  decodeWorkerAnswer,
  decodeWorkerQuery,
  encodeWorkerAnswer,
  encodeWorkerQuery,
  type WorkerAnswer,
  type WorkerQuery,
} from "./worker-query.ts";
export { xxh3, xxh3Literal } from "./xxh3.ts";
