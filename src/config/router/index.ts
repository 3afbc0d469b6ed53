import type { MachineFacts } from "../facts.ts";
import { loadBook } from "../load.ts";
import { type ConfigResult, type Overrides, parseBook } from "../parse.ts";
import { diffBook, type ReloadDiff } from "../reload.ts";
import { renderBook, renderConfigReference, renderSampleConfig } from "../render.ts";
import { ROUTER_BOOK, type RouterConfig } from "./schema.ts";

export { readListedWorker } from "./listed-worker.ts";
export { type ListedModel, type ListedWorker, ROUTER_BOOK, type RouterConfig } from "./schema.ts";

/** As `parseConfig`, of a router's file. */
export function parseRouterConfig(
  source: string,
  file: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): ConfigResult<RouterConfig> {
  return parseBook<RouterConfig>(ROUTER_BOOK, source, file, facts, overrides);
}

/** As `loadConfig`, of a router's file. */
export function loadRouterConfig(
  path: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): Promise<ConfigResult<RouterConfig>> {
  return loadBook<RouterConfig>(ROUTER_BOOK, path, facts, overrides);
}

export function diffRouterReload(old: RouterConfig, next: RouterConfig): ReloadDiff<RouterConfig> {
  return diffBook(ROUTER_BOOK, old, next);
}

export const renderRouterConfig = (config: RouterConfig) => renderBook(ROUTER_BOOK, config);
export const renderRouterSample = () => renderSampleConfig(ROUTER_BOOK);
export const renderRouterReference = () => renderConfigReference(ROUTER_BOOK);
