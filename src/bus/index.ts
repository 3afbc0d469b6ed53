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
  KeptMessage,
  ObjectFacts,
  ObjectRead,
  ObjectStore,
} from "./durable.ts";
export { createLocalBus, LocalHub } from "./local-bus.ts";
export {
  type BusOptions,
  type CredentialFiles,
  checkFiles,
  natsVersionIn,
  openBus,
  type Reached,
  reach,
  type Target,
  type TlsFiles,
} from "./nats/index.ts";
export {
  BUS_LIMITS,
  type BusBasics,
  type BusLimits,
  type BusLog,
  INBOX_PREFIX,
} from "./options.ts";
export { Presence, type PresenceOptions } from "./presence.ts";
export { isPattern, isSubject, mayAnswerTo } from "./subjects.ts";
