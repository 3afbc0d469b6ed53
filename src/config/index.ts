export { formatListen, type ListenAddress, zmqOfRank } from "./address-kinds.ts";
export type { AccessConfig } from "./checks.ts";
export { lanesPortOf, mayUseRdma, wantsRdma } from "./checks.ts";
export {
  diffReload,
  type KeyChange,
  loadConfig,
  type MachineFacts,
  type MemoryFacts,
  type ReloadDiff,
  readMachineFacts,
  readMemoryFacts,
} from "./load.ts";
export { CONFIG_BYTES_MAX, type ConfigResult, type Overrides, parseConfig } from "./parse.ts";
export type { ListedIssuer, ListedPeer } from "./peer-kinds.ts";
export { type ConfigProblem, formatProblem } from "./problems.ts";
export { REMOVED_AGENT_KEYS, REMOVED_ROUTER_KEYS } from "./removed-keys.ts";
export { renderConfig, renderConfigReference, renderSampleConfig } from "./render.ts";
export {
  diffRouterReload,
  type ListedModel,
  type ListedWorker,
  loadRouterConfig,
  parseRouterConfig,
  ROUTER_BOOK,
  type RouterConfig,
  readListedWorker,
  renderRouterConfig,
  renderRouterReference,
  renderRouterSample,
} from "./router/schema.ts";
export { type Config, SCHEMA_KEYS } from "./schema.ts";
export { deriveBlocksMax, deriveGpuWindowBlocks } from "./sections/kv.ts";
export { clusterNameKind, workerIdKind } from "./sections/node.ts";
export type { SchemaKey } from "./spec.ts";
export { parseText } from "./toml-positions.ts";
