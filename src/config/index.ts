export type { SchemaKey } from "./book.ts";
export { type MachineFacts, type MemoryFacts, readMachineFacts, readMemoryFacts } from "./facts.ts";
export type { ListedIssuer } from "./issuer-list.ts";
export { type KeyMap, type KeyPlace, mapKeys, positionsOf, type Statement } from "./key-locator.ts";
export { formatListen, type ListenAddress } from "./listen-address.ts";
export { loadConfig } from "./load.ts";
export { CONFIG_BYTES_MAX, type ConfigResult, type Overrides, parseConfig } from "./parse.ts";
export type { ListedPeer } from "./peer-list.ts";
export { type ConfigProblem, formatProblem } from "./problems.ts";
export { mayUseRdma } from "./rdma-use.ts";
export { diffReload, type KeyChange, type ReloadDiff } from "./reload.ts";
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
} from "./router/index.ts";
export { type Config, SCHEMA_KEYS } from "./schema.ts";
export { deriveBlocksMax } from "./sections/kv.ts";
export type { AccessConfig } from "./service-checks.ts";
export { zmqOfRank } from "./zmq-kind.ts";
