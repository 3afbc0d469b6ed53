import { assert } from "../../core/index.ts";
import type { AliasIndex } from "./alias-index.ts";
import { ALIASES_PER_NODE_MAX, NODES_PER_ALIAS_MAX } from "./block-table.ts";
import { type HashIndex, PROBE_MAX } from "./hash-index.ts";
import type { NodeColumns } from "./node-columns.ts";

/** Every entry names a live id once and is reached from its home over no empty place. */
export function verifyIndex(
  index: HashIndex,
  count: number,
  isLive: (id: number) => boolean,
): void {
  const { entries, mask, idMask } = index;
  const seen = new Set<number>();
  for (let place = 0; place <= mask; place++) {
    const entry = entries[place]!;
    if (entry === 0) continue;
    const id = entry & idMask;
    assert(isLive(id), "an indexed id is live");
    assert(!seen.has(id), "an id is indexed once");
    seen.add(id);
    const hash = index.hash(index.words, id * index.width);
    assert((entry & ~idMask) === (hash & ~idMask), "a tag is that of its words");
    const steps = (place - hash) & mask;
    assert(steps < PROBE_MAX, "an entry stands near its home");
    for (let step = 0; step < steps; step++) {
      assert(entries[(hash + step) & mask] !== 0, "no empty place before an entry");
    }
  }
  assert(seen.size === count, "every live id is indexed");
}

/** Every name belongs to one chain of a live node, and the limits hold. */
export function verifyAliases(aliases: AliasIndex, columns: NodeColumns): void {
  const { firstOfNode, nextOfNode, nodes, width, words } = aliases;
  const sharing = new Map<string, number>();
  let named = 0;
  for (let node = 0; node <= columns.nodesMax; node++) {
    let names = 0;
    for (let entry = firstOfNode[node]!; entry !== 0; entry = nextOfNode[entry]!) {
      assert(columns.meta[node] !== 0, "a named node is live");
      assert(nodes[entry] === node, "an alias belongs to the node that lists it");
      assert(++names <= ALIASES_PER_NODE_MAX, "a node has few aliases");
      const name = words.subarray(entry * width, (entry + 1) * width).join();
      sharing.set(name, (sharing.get(name) ?? 0) + 1);
      named++;
    }
  }
  assert(named === aliases.count, "aliases are counted");
  for (const nodesOfName of sharing.values()) {
    assert(nodesOfName <= NODES_PER_ALIAS_MAX, "an alias has few nodes");
  }
  let free = 0;
  for (let entry = aliases.firstFree; entry !== 0; entry = nextOfNode[entry]!) {
    assert(nodes[entry] === 0, "a free alias belongs to nobody");
    assert(++free <= aliases.highest, "the list of free aliases ends");
  }
  assert(free + aliases.count === aliases.highest, "no alias is lost");
  verifyIndex(aliases.index, aliases.count, (entry) => nodes[entry] !== 0);
}
