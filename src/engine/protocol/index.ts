export * from "./blocks.ts";
export * from "./engine-group.ts";
export * from "./error-reply.ts";
export {
  consumeOutput,
  createFrameReader,
  createOutput,
  type Decoded,
  emptyFrame,
  type Frame,
  type FrameDirection,
  type FrameHead,
  type FrameReader,
  type FrameReaderOptions,
  type FrameSink,
  type Output,
  pendingBytes,
  pendingOutput,
  type Refusal,
  refusal,
  wantsReply,
} from "./frame.ts";
export * from "./gpu.ts";
export * from "./hello.ts";
export * from "./layout.ts";
export * from "./lookups.ts";
export * from "./sessions.ts";
