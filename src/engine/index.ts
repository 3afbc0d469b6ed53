export { nameMedia, RememberedPrompts } from "./block-naming.ts";
export {
  type ClientEngine,
  type ClientGpu,
  type ClientMemory,
  type ClientOptions,
  EngineClient,
  type LookupAnswer,
} from "./client.ts";
export { Connection, type FrameHandler, type Wire } from "./connection.ts";
export type { CommandPort } from "./engine-handlers.ts";
export { EngineShares, type ShareLimits } from "./engine-shares.ts";
export {
  FRAME_OPERATIONS,
  FRAME_STATUSES,
  FrameCounts,
  type LookupOutcome,
} from "./frame-counts.ts";
export { GpuPlane, type GpuPlaneOptions } from "./gpu-copies.ts";
export { GpuWarming, type GpuWarmingOptions } from "./gpu-warming.ts";
export { createFrameHandler, type FrameHandlerContext } from "./hello-handler.ts";
export {
  type BlockItems,
  createPieceItems,
  type DigestItems,
  Feature,
  FrameStatus,
  Op,
  Outcome,
  outcomeName,
  type PieceItems,
} from "./protocol/index.ts";
export { EngineServer } from "./server.ts";
export {
  ENGINE_LIMITS,
  type EngineLimits,
  type EngineServerOptions,
  type EngineStats,
  emptyEngineStats,
} from "./server-options.ts";
export { peerAllowed, peerOf, type SocketOwner, takeSocketPath } from "./socket-file.ts";
