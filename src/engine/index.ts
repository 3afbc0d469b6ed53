export { nameMedia, RememberedPrompts } from "./block-names.ts";
export { type ClientOptions, EngineClient } from "./client.ts";
export type { ClientEngine, LookupAnswer } from "./client-engine.ts";
export type { ClientGpu, ClientMemory } from "./client-gpu.ts";
export { Connection, type FrameHandler, type Wire } from "./connection.ts";
export type { CommandPort } from "./engine-handlers.ts";
export { EngineShares, type ShareLimits } from "./engine-shares.ts";
export { type EngineStats, emptyEngineStats } from "./engine-stats.ts";
export { createFrameHandler, type FrameHandlerContext } from "./frame-handler.ts";
export { GpuPlane, type GpuPlaneOptions, WarmDesk, type WarmDeskOptions } from "./gpu/index.ts";
export { ENGINE_LIMITS, type EngineLimits } from "./limits.ts";
export { peerAllowed, type SocketOwner } from "./peer-access.ts";
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
export type { EngineServerOptions } from "./server-options.ts";
export { takeSocketPath } from "./socket-path.ts";
export { peerOf } from "./socket-peer.ts";
