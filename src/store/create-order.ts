import type { NodeId } from "../core/index.ts";
import type { BlockTable } from "./blocks/index.ts";
import {
  type CreateOrder,
  createHearthOrder,
  createLruOrder,
  type VictimOrder,
} from "./policy/index.ts";

const ORDERS = { hearth: createHearthOrder, lru: createLruOrder } as const satisfies Record<
  string,
  CreateOrder
>;

export type PolicyName = keyof typeof ORDERS;
export const POLICIES = Object.keys(ORDERS) as readonly PolicyName[];

/** The order of this name over the nodes of a table. */
export function createOrder(policy: PolicyName, table: BlockTable): VictimOrder {
  const key = new Uint32Array(8);
  const view = {
    parentOf: (node: NodeId) => table.parentOf(node),
    fingerprintOf(node: NodeId) {
      table.readKey(node, key, 0);
      return key[0]!;
    },
  };
  return ORDERS[policy](view, table.nodesMax);
}
