export { BlockServer, type BlockServerParts } from "./block-server.ts";
export { SERVE_LIMITS, type ServeLimits } from "./serve-limits.ts";
export type { ServeStats } from "./serve-stats.ts";
