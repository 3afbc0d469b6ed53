import { equalBytes } from "../../core/index.ts";
import type { KvbHeader } from "./header.ts";

/** What the table knows of a block whose file was read. */
export interface ExpectedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly namespaceKey: Uint8Array;
  /** Undefined: not known; null: it has none. */
  readonly parent: Uint8Array | null | undefined;
  readonly bytes: number;
  readonly checksum: bigint;
}

/** Which field of a sound header is not that of the block asked for. */
export type HeaderMismatch = "digest" | "layer" | "namespace" | "parent" | "bytes" | "checksum";

function sameParent(a: Uint8Array | null, b: Uint8Array | null): boolean {
  return a === null || b === null ? a === b : equalBytes(a, b);
}

/**
 * Whether a sound header is that of the block asked for: the first field that differs, or null. A
 * file of another block, of an earlier payload of this block or of another namespace differs.
 */
export function verifyHeader(header: KvbHeader, expected: ExpectedBlock): HeaderMismatch | null {
  if (!equalBytes(header.digest, expected.digest)) return "digest";
  if (header.layer !== expected.layer) return "layer";
  if (!equalBytes(header.namespaceKey, expected.namespaceKey)) return "namespace";
  const { parent } = expected;
  if (parent !== undefined && !sameParent(header.parent, parent)) return "parent";
  if (header.payloadBytes !== expected.bytes) return "bytes";
  if (header.payloadChecksum !== expected.checksum) return "checksum";
  return null;
}
