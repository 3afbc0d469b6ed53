import { DIGEST_BYTES, equalBytes } from "../../core/index.ts";
import type { PulledBlock } from "./peer-blocks.ts";

/** Other names that come with a block, at most. */
export const NAMES_MAX = 8;
const HASH_BYTES = 8;
const PAGE_KEY_BYTES = 32;

/** What was asked for. */
export interface AskedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** 32 bytes; null: a namespace that this process gave no number. */
  readonly namespace: Uint8Array | null;
  /** At most. */
  readonly bytes: number;
}

/**
 * What is wrong with a block as it came, or null: it is the one that was asked for, no longer than
 * its place, what lies there has the checksum that its sender says, and what is said beside that
 * has the form it must have.
 */
export function faultOfPull(block: PulledBlock, arrived: bigint, asked: AskedBlock): string | null {
  if (!equalBytes(block.digest, asked.digest)) return "it is another block";
  if (block.layer >>> 0 !== asked.layer >>> 0) return "it is another layer";
  const isOurs = asked.namespace !== null && equalBytes(block.namespace, asked.namespace);
  if (!isOurs) return "it is of another namespace";
  if (!Number.isInteger(block.bytes) || block.bytes < 1) return "it has no length";
  if (block.bytes > asked.bytes) return "it is longer than what was asked for";
  if (block.checksum !== arrived) return "its bytes are not those its sender had";
  return faultOfNames(block);
}

function faultOfNames({ digest, parent, aliases }: PulledBlock): string | null {
  if (parent !== null) {
    if (parent.length !== DIGEST_BYTES) return "its parent has no name";
    if (equalBytes(parent, digest)) return "it is its own parent";
  }
  if (aliases.length > NAMES_MAX) return "it has too many names";
  const isName = ({ length }: Uint8Array) => length === HASH_BYTES || length === PAGE_KEY_BYTES;
  return aliases.every(isName) ? null : "one of its names is none";
}
