export * from "./block-table.ts";
export { createBlockTable } from "./create-block-table.ts";
export { createSlotAllocator } from "./create-slot-allocator.ts";
export { ANY_ZONE } from "./extent-lists.ts";
export * from "./slot-allocator.ts";
