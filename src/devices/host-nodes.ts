import { readFileSync } from "node:fs";
import { join } from "node:path";

/** NUMA nodes of this host that have memory; 1 where the kernel knows none. */
export function hostMemoryNodes(root = "/"): number {
  try {
    const path = join(root, "sys/devices/system/node/has_memory");
    return Math.max(1, countOf(readFileSync(path, "utf8").trim()));
  } catch (thrown) {
    if (thrown instanceof Error && "code" in thrown) return 1;
    throw thrown;
  }
}

/** Of a list as the kernel writes it: `0-1,4`. */
function countOf(list: string): number {
  let count = 0;
  for (const range of list.split(",")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(range);
    if (match !== null) count += Number(match[2] ?? match[1]) - Number(match[1]) + 1;
  }
  return count;
}
