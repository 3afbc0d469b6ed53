export { type Dial, type Incoming, type Link, messageBytes, type Outgoing } from "./link.ts";
export { LinkBus } from "./link-bus.ts";
export type { LinkBucket, LinkDurable, StreamMessage, StreamMessages } from "./link-durable.ts";
export { Sender } from "./sender.ts";
