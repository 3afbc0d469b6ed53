export {
  type BlockSource,
  BlockTable,
  InsertRefusal,
  type InsertResult,
  isRefusal,
} from "./block-table.ts";
export { ANY_ZONE } from "./extent-lists.ts";
export { NODES_PER_ALIAS_MAX } from "./hash-index.ts";
export {
  NodeFlag,
  RECENCY_TIERS,
  type RecencyTier,
  TIERS_ALL,
  Tier,
  USES_MAX,
} from "./node-columns.ts";
export * from "./slot-allocator.ts";
export type { TableView } from "./table-view.ts";
export { type LeafWalk, WALKS_MAX } from "./tree.ts";
