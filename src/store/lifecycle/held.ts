import { DIGEST_BYTES, type HeldBy, type NodeId } from "../../core/index.ts";
import { Tier } from "../blocks/index.ts";
import type { LifecycleContext } from "./context.ts";
import type { HeldBlock } from "./lifecycle.ts";

export const BY_DESCENDANTS: readonly HeldBy[] = Object.freeze([{ kind: "descendants" }]);
export const BY_GPU: readonly HeldBy[] = Object.freeze([{ kind: "gpu" }]);
export const BY_ENGINE: readonly HeldBy[] = Object.freeze([{ kind: "engine" }]);

/** Who keeps the block from being removed; what builds upon it where nobody holds it itself. */
export function holdersOf(context: LifecycleContext, node: NodeId): readonly HeldBy[] {
  const { store, holds, sessions } = context;
  const { table, ssd } = store;
  const pinned = table.pinsOf(node) > 0 ? holds.holdersOf(node) : [];
  const locks = table.locksOf(node);
  if (locks === 0) return pinned.length > 0 ? pinned : BY_DESCENDANTS;
  const inSessions = sessions.holdersOf(node);
  const isWritten = ssd?.writer.isQueued(node) === true;
  const by = [...pinned, ...inSessions];
  if (isWritten) by.push({ kind: "write" });
  if (locks > inSessions.length + (isWritten ? 1 : 0)) by.push({ kind: "engine" });
  return by;
}

/** Whether nothing but its own way to SSD keeps the block: that can be called off. */
export function isHeldByWriteAlone(context: LifecycleContext, node: NodeId): boolean {
  const { table, ssd } = context.store;
  return table.locksOf(node) === 1 && !table.isKept(node) && ssd?.writer.isQueued(node) === true;
}

/** Whether somebody needs the block, or what builds upon it, on this host. */
export function isHeld({ store }: LifecycleContext, node: NodeId): boolean {
  return store.table.isProtected(node, Tier.ssd);
}

/** A block that stays although a command met it, as reports list it. */
export function heldBlock(
  context: LifecycleContext,
  node: NodeId,
  by: readonly HeldBy[],
): HeldBlock {
  const { table } = context.store;
  const digest = new Uint8Array(DIGEST_BYTES);
  table.readDigest(node, digest, 0);
  const hex = table.isGhost(node) ? null : digest.toHex();
  return { outcome: "held", by, digest: hex, layer: table.layerOf(node) };
}
