export { nameMedia, RememberedPrompts } from "./block-naming.ts";
export { type ClientOptions, EngineClient } from "./client.ts";
export { Connection, type FrameHandler, type Wire } from "./connection.ts";
export { EngineShares, type ShareLimits } from "./engine-shares.ts";
export {
  FRAME_OPERATIONS,
  FRAME_STATUSES,
  FrameCounts,
  type LookupOutcome,
} from "./frame-counts.ts";
export { GpuPlane } from "./gpu-copies.ts";
export { GpuWarming } from "./gpu-warming.ts";
export { createFrameHandler } from "./handlers.ts";
export {
  type BlockItems,
  createPieceItems,
  Feature,
  FrameStatus,
  Op,
  Outcome,
  outcomeName,
  type PieceItems,
} from "./protocol/index.ts";
export { EngineServer } from "./server.ts";
export {
  type CommandPort,
  ENGINE_LIMITS,
  type EngineLimits,
  type EngineServerOptions,
  emptyEngineStats,
} from "./server-options.ts";
export { peerAllowed, peerOf, takeSocketPath } from "./socket-file.ts";
