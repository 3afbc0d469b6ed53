import { assert, BLOCK_KEY_BYTES, DIGEST_BYTES, NO_NODE, type NodeId } from "../../core/index.ts";
import { MAC_BYTES } from "../../native/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import {
  blockPath,
  type DecodedHeader,
  type ExpectedBlock,
  fileBytesOf,
  verifyHeader,
} from "../kvb/index.ts";
import { isMac } from "../namespace-macs.ts";
import type { Namespaces } from "../namespaces.ts";

/**
 * What the file of a node is called and what must be in it. Two keys with one short name have
 * different variants; nearly all blocks have variant 0, so only the others are kept.
 */
export class BlockFiles {
  readonly #table: BlockTable;
  readonly #namespaces: Namespaces;
  readonly #variants = new Map<NodeId, number>();
  readonly #suspects = new Set<NodeId>();
  readonly #key = new Uint32Array(BLOCK_KEY_BYTES / 4);
  readonly #keyBytes = new Uint8Array(this.#key.buffer);

  constructor(table: BlockTable, namespaces: Namespaces) {
    this.#table = table;
    this.#namespaces = namespaces;
  }

  pathOf(node: NodeId, variant = this.variantOf(node)): string {
    this.#table.readKey(node, this.#key, 0);
    return blockPath(this.#keyBytes, this.#table.layerOf(node), variant);
  }

  variantOf(node: NodeId): number {
    return this.#variants.get(node) ?? 0;
  }

  setVariant(node: NodeId, variant: number): void {
    if (variant === 0) this.#variants.delete(node);
    else this.#variants.set(node, variant);
  }

  /** The copy in RAM that the file may have been written from was damaged. */
  suspect(node: NodeId): void {
    this.#suspects.add(node);
  }

  isSuspect(node: NodeId): boolean {
    return this.#suspects.has(node);
  }

  /** The node has no file any more. */
  forget(node: NodeId): void {
    this.#variants.delete(node);
    this.#suspects.delete(node);
  }

  /** Null: it has no parent, or one whose digest nobody said. */
  parentDigestOf(node: NodeId): Uint8Array | null {
    const parent = this.#table.parentOf(node);
    if (parent === NO_NODE || this.#table.isGhost(parent)) return null;
    return this.digestOf(parent);
  }

  digestOf(node: NodeId): Uint8Array {
    const digest = new Uint8Array(DIGEST_BYTES);
    this.#table.readDigest(node, digest, 0);
    return digest;
  }

  namespaceKeyOf(node: NodeId): Uint8Array {
    const key = this.#namespaces.keyOf(this.#table.namespaceOf(node));
    assert(key !== null, "a block's namespace was given its number by this process");
    return key;
  }

  checksumOf(node: NodeId): bigint {
    const table = this.#table;
    return (BigInt(table.checksumHiOf(node)) << 32n) | BigInt(table.checksumLoOf(node));
  }

  /** Null: it has none. */
  macOf(node: NodeId): Uint8Array | null {
    const mac = new Uint8Array(MAC_BYTES);
    this.#table.readMac(node, mac);
    return isMac(mac) ? mac : null;
  }

  /** What a sound header and payload of this node say. The parent may have become known since. */
  expected(node: NodeId): ExpectedBlock {
    return {
      digest: this.digestOf(node),
      layer: this.#table.layerOf(node),
      namespaceKey: this.namespaceKeyOf(node),
      parent: undefined,
      bytes: this.#table.bytesOf(node),
      checksum: this.checksumOf(node),
    };
  }
}

/** What the disk says of a file that it read. */
export interface ReadFile {
  /** XXH3-64 of the payload as it lies in memory. */
  readonly checksum: bigint;
  readonly fileBytes: number;
}

export interface ReadFault {
  readonly why: string;
  /** The header is right and of this run of the agent, so that the payload came out of RAM. */
  readonly isOwnPayload: boolean;
  /** The file is sound and the block's, and not what was written last: nothing has been damaged. */
  readonly isStale: boolean;
}

/** It is not what was written. */
export const damaged = (why: string, isOwnPayload = false): ReadFault => ({
  ...{ why, isOwnPayload, isStale: false },
});

/**
 * Whether bytes from SSD may be believed: what is wrong with what was read, or null. The header is
 * sound, it is that of the block asked for, the payload's checksum is the one it carries, which is
 * the one the table knows, and the file is as long as such a block's is. `faultOfMac` is the rest.
 */
export function faultOfRead(
  decoded: DecodedHeader,
  read: ReadFile,
  expected: ExpectedBlock,
  incarnation: bigint,
): ReadFault | null {
  if (!decoded.ok) return damaged(decoded.why);
  const mismatch = verifyHeader(decoded.header, expected);
  if (mismatch !== null && mismatch !== "checksum") return damaged(`its ${mismatch} is another`);
  if (read.fileBytes !== fileBytesOf(expected.bytes)) return damaged("its length is another");
  if (decoded.header.payloadChecksum !== read.checksum) {
    const isOwn = decoded.header.incarnation === incarnation && mismatch === null;
    return damaged("its payload is damaged", isOwn);
  }
  if (mismatch === null) return null;
  return { why: "it is of another generation", isOwnPayload: false, isStale: true };
}
