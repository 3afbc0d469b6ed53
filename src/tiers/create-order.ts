import type { BlockTable } from "../blocks/index.ts";
import { createLruOrder, type VictimOrder } from "./policy/index.ts";

export const POLICIES = ["hearth", "lru"] as const;
export type PolicyName = (typeof POLICIES)[number];

/** The order of this name over the nodes of a table. */
export function createOrder(_policy: PolicyName, table: BlockTable): VictimOrder {
  const key = new Uint32Array(8);
  const view = {
    parentOf: table.parentOf.bind(table),
    fingerprintOf(node: Parameters<typeof table.parentOf>[0]) {
      table.readKey(node, key, 0);
      return key[0]!;
    },
  };
  return createLruOrder(view, table.nodesMax);
}
