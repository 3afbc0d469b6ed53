export { type ClientOptions, EngineClient } from "./client.ts";
export { Connection, type Wire } from "./connection.ts";
export type { EngineStats } from "./engine-stats.ts";
export { createFrameHandler, type FrameHandlerContext } from "./frame-handler.ts";
export { ENGINE_LIMITS, type EngineLimits } from "./limits.ts";
export {
  type BlockItems,
  type DigestItems,
  FrameStatus,
  Op,
  Outcome,
  outcomeName,
} from "./protocol/index.ts";
export { EngineServer, type EngineServerOptions } from "./server.ts";
