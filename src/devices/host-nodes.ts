import { readFileSync } from "node:fs";
import { join } from "node:path";

/** NUMA nodes of this host that have memory; 1 where the kernel knows none. */
export function hostMemoryNodes(root = "/"): number {
  try {
    const path = join(root, "sys/devices/system/node/has_memory");
    return Math.max(1, nodesOf(readFileSync(path, "utf8").trim()).size);
  } catch (thrown) {
    if (thrown instanceof Error && "code" in thrown) return 1;
    throw thrown;
  }
}

/** Of a list as the kernel writes it: `0-1,4`. */
export function nodesOf(list: string): ReadonlySet<number> {
  const nodes = new Set<number>();
  for (const range of list.split(",")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(range);
    if (match === null) continue;
    for (let node = Number(match[1]); node <= Number(match[2] ?? match[1]); node++) nodes.add(node);
  }
  return nodes;
}
