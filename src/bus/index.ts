export * from "./bus.ts";
export {
  type BrokerConnection,
  type Dial,
  type Incoming,
  messageBytes,
  type Outgoing,
} from "./connection.ts";
export { abortFault, hasNoResponders, Inbox, type Mailbox } from "./inbox.ts";
export { createLocalBus, LocalHub } from "./local-bus.ts";
export { type CredentialFiles, checkFiles, type TlsFiles } from "./nats-credentials.ts";
export { natsVersionIn, type Reached, reach, type Target } from "./nats-probe.ts";
export { type BusOptions, openBus, parseServers, serverLike } from "./open-bus.ts";
export { Presence, type PresenceOptions } from "./presence.ts";
export { ReconnectingBus } from "./reconnecting-bus.ts";
export { Sender } from "./sender.ts";
