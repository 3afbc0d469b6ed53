export * from "./block-table.ts";
export * from "./extent-lists.ts";
export * from "./hash-index.ts";
export * from "./node-columns.ts";
export * from "./slot-allocator.ts";
export type { TableView } from "./table-view.ts";
export * from "./tree.ts";
