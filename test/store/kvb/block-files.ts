import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { LAYER_ALL } from "../../../src/core/index.ts";
import type { Native } from "../../../src/native/index.ts";
import {
  blockPath,
  encodeHeader,
  fileBytesOf,
  HEADER_BYTES,
  type IndexedBlock,
  type IndexedBlocks,
  type KvbHeader,
} from "../../../src/store/kvb/index.ts";

export interface BlockFile {
  readonly path: string;
  readonly variant: number;
  readonly header: KvbHeader;
  readonly bytes: Uint8Array;
}

export interface BlockWishes {
  readonly layer?: number;
  readonly payloadBytes?: number;
  readonly variant?: number;
  readonly parent?: Uint8Array | null;
  readonly namespaceKey?: Uint8Array;
  /** Another payload for the same address. */
  readonly generation?: number;
}

/** Block number `seed` of a folder: address and payload are functions of the seed. */
export function blockFile(
  native: Pick<Native, "blockKeys" | "blake3">,
  seed: number,
  wishes: BlockWishes = {},
): BlockFile {
  const { layer = LAYER_ALL, payloadBytes = 6000, variant = 0, generation = 0 } = wishes;
  const digest = native.blake3(Uint8Array.of(seed, seed >> 8, seed >> 16, seed >> 24));
  const payload = Uint8Array.from(
    { length: payloadBytes },
    (_, i) => digest[i % 32]! + Math.imul(i >> 5, 31) + generation,
  );
  const header: KvbHeader = {
    digest,
    layer,
    parent: wishes.parent ?? null,
    namespaceKey: wishes.namespaceKey ?? new Uint8Array(32).fill(0x4e),
    payloadBytes,
    payloadChecksum: Bun.hash.xxHash3(payload),
    mac: null,
    incarnation: 7n,
    sequence: seed + 1,
    writtenMs: 1_790_000_000_000 + generation,
  };
  const bytes = new Uint8Array(fileBytesOf(payloadBytes));
  encodeHeader(header, bytes.subarray(0, HEADER_BYTES));
  bytes.set(payload, HEADER_BYTES);
  const key = new Uint8Array(32);
  native.blockKeys(digest, layer, key);
  return { path: blockPath(key, layer, variant), variant, header, bytes };
}

export function writeBlock(dir: string, block: BlockFile, path = block.path): void {
  mkdirSync(dirname(join(dir, path)), { recursive: true });
  writeFileSync(join(dir, path), block.bytes);
}

/** An index that holds these blocks, literally. */
export function literalIndex(blocks: readonly BlockFile[]): IndexedBlocks {
  const rows: IndexedBlock[] = blocks.map(({ header, variant }, rowId) => {
    const { digest, layer, namespaceKey, parent, payloadBytes, payloadChecksum } = header;
    const known = { digest, layer, namespaceKey, parent };
    return { rowId, variant, ...known, bytes: payloadBytes, checksum: payloadChecksum };
  });
  return {
    find: (digest, layer) =>
      rows.find((row) => row.layer === layer && Bun.deepEquals(row.digest, digest)) ?? null,
    all: () => rows,
  };
}
