export {
  BUS_LIMITS,
  type Bucket,
  type BucketRead,
  type BucketWrite,
  type Bus,
  type BusBasics,
  type BusHandler,
  type BusLimits,
  type BusLog,
  type BusMessage,
  type BusState,
  type ConsumeOptions,
  type Consumption,
  type ConsumptionState,
  type DurableBus,
  type DurableOutcome,
  type DurablePublishOptions,
  INBOX_PREFIX,
  isPattern,
  isSubject,
  mayAnswerTo,
  type ObjectFacts,
  type ObjectRead,
  type ObjectStore,
  type PublishOptions,
  type PublishOutcome,
  type RequestOptions,
  type RequestOutcome,
  type ServiceSpec,
  type StoredMessage,
  type Subscription,
} from "./bus.ts";
export {
  type BrokerConnection,
  type Dial,
  type Incoming,
  messageBytes,
  type Outgoing,
} from "./connection.ts";
export { createLocalBus, LocalHub } from "./local-bus.ts";
export { type CredentialFiles, checkFiles, type TlsFiles } from "./nats-credentials.ts";
export { natsVersionIn, type Reached, reach, type Target } from "./nats-probe.ts";
export { type BusOptions, openBus, parseServers, serverLike } from "./open-bus.ts";
export { Presence, type PresenceOptions } from "./presence.ts";
export { ReconnectingBus } from "./reconnecting-bus.ts";
export { Sender } from "./sender.ts";
