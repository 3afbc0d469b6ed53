export {
  BlockServer,
  type BlockServerParts,
  SERVE_LIMITS,
  type ServeLimits,
  type ServeStats,
} from "./block-server.ts";
