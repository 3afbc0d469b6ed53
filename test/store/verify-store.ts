import { assert, NO_NODE } from "../../src/core/index.ts";
import { Tier } from "../../src/store/blocks/index.ts";
import type { TieredStore } from "../../src/store/index.ts";
import { verifySlots } from "./blocks/verify-slots.ts";
import { verifyTable } from "./blocks/verify-table.ts";

/** Checks table and allocator, and that each refers to the other correctly. */
export function verifyStore({ table, slots }: TieredStore): void {
  verifyTable(table);
  verifySlots(slots);
  const blocks = table.residentBlocks(Tier.ram);
  assert(blocks <= slots.usedSlots, "every resident block has a slot");
  for (let node = table.nextOn(NO_NODE, Tier.ram); node !== NO_NODE; ) {
    const slot = table.slotOf(node);
    assert(slots.nodeOf(slot) === node, "a block's slot names the block");
    const isCurrent = slots.isCurrent(slot, table.slotGenerationOf(node));
    assert(isCurrent, "a block's slot has the block's generation");
    node = table.nextOn(node, Tier.ram);
  }
}
