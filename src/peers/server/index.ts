export {
  BlockServer,
  type BlockServerOptions,
  SERVE_LIMITS,
  type ServeLimits,
  type ServeStats,
} from "./block-server.ts";
