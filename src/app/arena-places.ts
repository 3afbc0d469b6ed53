import { hostMemoryNodes } from "../devices/index.ts";
import type { Region } from "../native/index.ts";
import type { Logger } from "../observability/index.ts";
import { type ArenaPart, planArenaParts } from "../store/index.ts";

export interface PlaceOptions {
  /** Those of the devices; null where one does not say. */
  readonly nodes: readonly (number | null)[];
  /** Its pages are not there yet; else they stay where they are. */
  readonly isNew: boolean;
  readonly logger: Pick<Logger, "info" | "warn">;
  /** NUMA nodes of the host that have memory. */
  readonly hostNodes?: number;
}

/**
 * Gives each NUMA node that has devices its part of the arena, before the first page of it is
 * there. None on hosts with one node: all memory is as near as any.
 */
export function placeArena(region: Region, options: PlaceOptions): readonly ArenaPart[] {
  const { nodes, isNew, logger, hostNodes = hostMemoryNodes() } = options;
  const parts = planArenaParts(region.bytes, nodes, hostNodes);
  if (!isNew || parts.length === 0) return parts;
  for (const { offset, bytes, node } of parts) {
    if (region.preferNode(offset, bytes, node)) continue;
    logger.warn("the kernel places no memory by node", { node });
    return [];
  }
  const of = parts.map(({ node }) => node).join(" ");
  logger.info("RAM is divided among the nodes of devices", { nodes: of });
  return parts;
}
