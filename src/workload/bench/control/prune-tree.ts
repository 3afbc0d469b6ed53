/**
 * A tree of so many blocks below block 0, in equal parts: one chain, chains of a thousand, bushes
 * of sixteen branches, and blocks right below the root. Parents come before their children.
 */
const CHAIN = 1_000;
const BRANCHES = 16;

/** The parent of a block of the tree of `below` blocks under block 0; null: block 0 itself. */
export function parentInTree(block: number, below: number): number | null {
  if (block === 0) return null;
  const part = Math.max(1, Math.floor(below / 4));
  const kind = Math.floor((block - 1) / part);
  const at = (block - 1) % part;
  if (kind === 0) return block - 1;
  if (kind === 1) return at % CHAIN === 0 ? 0 : block - 1;
  if (kind === 2) return at === 0 ? 0 : block - at + Math.floor((at - 1) / BRANCHES);
  return 0;
}
