export type {
  Bus,
  BusHandler,
  BusMessage,
  BusState,
  PublishOptions,
  PublishOutcome,
  RequestOptions,
  RequestOutcome,
  ServiceSpec,
  Subscription,
} from "./bus.ts";
export type {
  Bucket,
  BucketRead,
  BucketWrite,
  ConsumeOptions,
  Consumption,
  ConsumptionState,
  DurableBus,
  DurableOutcome,
  DurablePublishOptions,
} from "./durable.ts";
export { natsVersionIn, type Reached, reach, type Target } from "./greeting.ts";
export { createLocalBus, LocalHub } from "./local-bus.ts";
export { type BusOptions, openBus } from "./open-bus.ts";
export { BUS_LIMITS, type BusBasics, type BusLimits, type BusLog } from "./options.ts";
export { Presence, type PresenceOptions } from "./presence.ts";
export { isPattern, isSubject } from "./subjects.ts";
