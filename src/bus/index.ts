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
