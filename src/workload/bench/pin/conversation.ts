import { DIGEST_BYTES } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";

/** Blocks that build upon each other, each with the 64-bit hash its engine knows it by. */
export interface Conversation {
  readonly count: number;
  /** 32 bytes a block, the first one's first. */
  readonly digests: Uint8Array;
  /** Unsigned; known before anything is stored. */
  readonly hashes: readonly bigint[];
}

/** Conversation number `number`: no two numbers share a block. */
export function conversation(
  native: Native,
  namespaceKey: Uint8Array,
  number: number,
  count: number,
): Conversation {
  const ids = new BigUint64Array(count);
  for (let i = 0; i < count; i++) ids[i] = (BigInt(number) << 32n) | BigInt(i);
  const digests = new Uint8Array(count * DIGEST_BYTES);
  native.chainDigests(namespaceKey, new Uint8Array(ids.buffer), 8, digests);
  const view = new DataView(digests.buffer);
  const hashes = Array.from({ length: count }, (_, i) => view.getBigUint64(i * DIGEST_BYTES, true));
  return { count, digests, hashes };
}
