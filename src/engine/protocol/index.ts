export * from "./blocks.ts";
export * from "./engine-group.ts";
export * from "./engine-lookup.ts";
export * from "./error-reply.ts";
export {
  emptyFrame,
  type Frame,
  type FrameDirection,
  type FrameHead,
  wantsReply,
} from "./frame.ts";
export * from "./frame-reader.ts";
export * from "./gpu-copies.ts";
export * from "./gpu-devices.ts";
export * from "./gpu-memories.ts";
export * from "./gpu-warm.ts";
export * from "./handles.ts";
export * from "./hello.ts";
export * from "./items.ts";
export * from "./layout.ts";
export * from "./lookups.ts";
export {
  consumeOutput,
  createOutput,
  type Output,
  pendingBytes,
  pendingOutput,
} from "./output.ts";
export { type Decoded, type Refusal, refusal } from "./refusal.ts";
export * from "./session-list.ts";
export * from "./sessions.ts";
