export * from "./block-table.ts";
export { createBlockTable } from "./create-block-table.ts";
export { createSlotAllocator } from "./create-slot-allocator.ts";
export { ANY_ZONE } from "./extent-lists.ts";
export type { SlotLayout } from "./restore-slots.ts";
export * from "./slot-allocator.ts";
export * from "./table-view.ts";
export * from "./tier.ts";
