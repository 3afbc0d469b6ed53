import type { RecencyTier, TableView } from "../../blocks/index.ts";
import type { NodeId } from "../../core/index.ts";

/**
 * `refresh`: the block and all its ancestors become the newest of the tier. `keep`: they stay where
 * they stand (a block just stored stands just behind its nearest ancestor on the tier, else at the
 * newest end).
 */
export type Placement = "refresh" | "keep";

/**
 * Chooses what leaves a tier. A policy is pure: it reads the view and its arguments, keeps nothing
 * and changes nothing, so that the same table always gives the same answer. Promises of every
 * policy:
 *
 * - `victim` answers an unprotected node resident on the tier with no descendant resident on it,
 *   or NO_NODE where it finds none; never more work than a fixed number of nodes looked at.
 * - `onStored` and `onUsed` are asked once for the deepest block of a request, after its counters
 *   moved.
 *
 * What a policy may weigh: `usesOf`, `lastUsedOf`, `bytesOf`, `depthOf`, `hasFlag`, the order from
 * `oldest` through `newerThan`, and `isLeafOn` for candidates that are not the oldest.
 */
export interface EvictionPolicy {
  readonly name: string;
  onStored(view: TableView, node: NodeId, tier: RecencyTier): Placement;
  onUsed(view: TableView, node: NodeId, tier: RecencyTier): Placement;
  victim(view: TableView, tier: RecencyTier): NodeId;
}
