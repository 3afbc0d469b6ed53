import { type HeldBy, NO_NODE, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";

/** Nodes looked at: some microseconds. */
const STEPS_MAX = 1_000;
const HOLDERS_MAX = 16;

/** Knows who holds a node by itself: holds do, and sessions. */
export interface HolderSource {
  holdersOf(node: NodeId): readonly HeldBy[];
}

/**
 * Who holds a node or any of its descendants, each once, at most `max`. Goes down only where
 * something is held, looks at 1,000 nodes and then answers what it found so far: perhaps none.
 */
export function holdersBelow(
  table: BlockTable,
  node: NodeId,
  sources: readonly HolderSource[],
  max = HOLDERS_MAX,
): HeldBy[] {
  const found = new Map<string, HeldBy>();
  const note = (at: NodeId) => {
    for (const source of sources) {
      for (const by of source.holdersOf(at)) found.set(`${by.kind}/${by.owner}/${by.name}`, by);
    }
  };
  const upcoming: NodeId[] = [node];
  note(node);
  for (let steps = 0; upcoming.length > 0; ) {
    let child = table.firstChildOf(upcoming.pop()!);
    for (; child !== NO_NODE; child = table.nextSiblingOf(child)) {
      if (++steps > STEPS_MAX || found.size >= max) {
        return [...found.values()].slice(0, max);
      }
      if (!table.isKept(child) && !table.isProtected(child, Tier.ram)) continue;
      note(child);
      upcoming.push(child);
    }
  }
  return [...found.values()].slice(0, max);
}
