import { type BlockResult, NO_NODE, type NodeId } from "../../core/index.ts";
import { type TableView, Tier } from "../blocks/index.ts";
import { OUR_TIERS } from "./named-blocks.ts";

/** The block itself is safe; after a crash its prompt would end before it. */
export const WAY_OUTSTANDING: BlockResult = Object.freeze({
  outcome: "deferred",
  reason: "ssd: a block that leads to it is in RAM alone; it is tried again",
});

/** What leads to the blocks and is not among them, each once. */
export function ancestorsOf(table: TableView, nodes: readonly NodeId[]): NodeId[] {
  const seen = new Set(nodes);
  const above: NodeId[] = [];
  for (const node of nodes) {
    let step = table.parentOf(node);
    for (; step !== NO_NODE && !seen.has(step); step = table.parentOf(step)) {
      seen.add(step);
      above.push(step);
    }
  }
  return above;
}

/** Whether a crash would take none of these from SSD's blocks behind them. */
export function areOutOfRam(table: TableView, above: readonly NodeId[]): boolean {
  return above.every((node) => (table.residencyOf(node) & OUR_TIERS) !== Tier.ram);
}
