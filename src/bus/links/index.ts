export { type Dial, type Incoming, type Link, messageBytes, type Outgoing } from "./link.ts";
export { LinkBus } from "./link-bus.ts";
export {
  type LinkBucket,
  type LinkDurable,
  type LinkObjects,
  SILENCE_MS,
  type StreamMessage,
  type StreamMessages,
} from "./link-durable.ts";
export { Sender } from "./sender.ts";
