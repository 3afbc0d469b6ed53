import { assert, BLOCK_KEY_BYTES, HearthError, NO_NODE, type NodeId } from "../../core/index.ts";
import type { BlockDisk, HeaderSlot, Region, StatusName } from "../../native/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import {
  blockPath,
  type DecodedHeader,
  decodeHeader,
  type ExpectedBlock,
  encodeHeader,
  fileBytesOf,
  verifyHeader,
} from "../kvb/index.ts";
import type { Namespaces } from "../namespaces.ts";

/**
 * Knows the file name of each node and what its file must contain. The variant in a file name
 * distinguishes keys with the same short name. Nearly all blocks have variant 0, so only other
 * variants are stored.
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

  /**
   * Marks the node's file as suspect: the copy in RAM from which it may have been written was
   * damaged.
   */
  suspect(node: NodeId): void {
    this.#suspects.add(node);
  }

  isSuspect(node: NodeId): boolean {
    return this.#suspects.has(node);
  }

  /** Forgets the variant and suspicion of a node that no longer has a file. */
  forget(node: NodeId): void {
    this.#variants.delete(node);
    this.#suspects.delete(node);
  }

  /**
   * Returns the digest of the node's parent. Null if it has no parent or the parent's digest is
   * unknown.
   */
  parentDigestOf(node: NodeId): Uint8Array | null {
    const parent = this.#table.parentOf(node);
    const isKnown = parent !== NO_NODE && !this.#table.isGhost(parent);
    return isKnown ? this.#table.digestOf(parent) : null;
  }

  namespaceKeyOf(node: NodeId): Uint8Array {
    const key = this.#namespaces.keyOf(this.#table.namespaceOf(node));
    assert(key !== null, "a block's namespace has a number in this process");
    return key;
  }

  /**
   * Returns the header fields and payload checksum that the node's file must have. The parent may
   * be known now although it was unknown when the file was written.
   */
  expected(node: NodeId): ExpectedBlock {
    const table = this.#table;
    return {
      digest: table.digestOf(node),
      layer: table.layerOf(node),
      namespaceKey: this.namespaceKeyOf(node),
      parent: undefined,
      bytes: table.bytesOf(node),
      checksum: table.checksumOf(node),
    };
  }
}

/** A block file as it was read into memory. */
export interface ReadFile {
  /** XXH3-64 of the payload as it was read. */
  readonly checksum: bigint;
  readonly fileBytes: number;
}

export interface ReadFault {
  readonly why: string;
  /**
   * True if the header is valid and names this run of the agent: this run wrote the payload from
   * RAM.
   */
  readonly isOwnPayload: boolean;
  /**
   * True if the file is valid and belongs to the block, but is not the version in the block table.
   * Such a file is not damaged.
   */
  readonly isStale: boolean;
}

/** Creates a fault that means damage. */
export const damaged = (why: string, isOwnPayload = false): ReadFault => ({
  why,
  isOwnPayload,
  isStale: false,
});

/**
 * Decides whether bytes read from SSD are accepted; no other code accepts them. Returns the reason
 * to reject them, or null. Checks that the header is valid and belongs to the block, that the
 * payload's checksum matches the header and the block table, and that the file has the expected
 * length. `faultOfMac` checks the MAC.
 */
export function faultOfRead(
  decoded: DecodedHeader,
  read: ReadFile,
  expected: ExpectedBlock,
  incarnation: bigint,
): ReadFault | null {
  if (!decoded.ok) return damaged(decoded.why);
  const mismatch = verifyHeader(decoded.header, expected);
  if (mismatch !== null && mismatch !== "checksum") return damaged(`${mismatch} mismatch`);
  if (read.fileBytes !== fileBytesOf(expected.bytes)) return damaged("length mismatch");
  if (decoded.header.payloadChecksum !== read.checksum) {
    const isOwn = decoded.header.incarnation === incarnation && mismatch === null;
    return damaged("payload damaged", isOwn);
  }
  if (mismatch === null) return null;
  return { why: "stale generation", isOwnPayload: false, isStale: true };
}

export type ProbeResult =
  | { readonly ok: true; readonly allocatedBytes: number }
  | { readonly ok: false; readonly status: StatusName | "damaged"; readonly errno: number };

/**
 * Payload bytes of the probe block. With its header the file has three pages, so an allocation unit
 * of two pages shows in its disk usage.
 */
export const PROBE_BYTES = 8192;
export const PROBE_FILE_BYTES = fileBytesOf(PROBE_BYTES);
const ZERO_KEY = new Uint8Array(32);

/**
 * Writes a small block to the SSD folder, reads it back, verifies it like any other block and
 * removes it. The tier runs this at startup, and later to find out whether a failed disk accepts
 * blocks again. `scratch`: memory of at least `PROBE_BYTES` that no other code uses meanwhile.
 */
export async function probeDisk(
  disk: BlockDisk,
  scratch: Region,
  incarnation: bigint,
): Promise<ProbeResult> {
  const header = disk.claimHeader();
  if (header === null) return { ok: false, status: "full", errno: 0 };
  try {
    return await probeWith(disk, scratch, incarnation, header);
  } finally {
    header[Symbol.dispose]();
  }
}

async function probeWith(
  disk: BlockDisk,
  scratch: Region,
  incarnation: bigint,
  header: HeaderSlot,
): Promise<ProbeResult> {
  const path = `probe-${incarnation.toString(36)}.kvb`;
  const bytes = PROBE_BYTES;
  scratch.fill(0, bytes, incarnation);
  const checksum = scratch.checksum(0, bytes);
  const expected = { digest: ZERO_KEY, layer: 0, namespaceKey: ZERO_KEY, parent: null, bytes };
  const payload = { payloadBytes: bytes, payloadChecksum: checksum, mac: null };
  const fields = { ...payload, incarnation, sequence: 0, writtenMs: 0 };
  encodeHeader({ ...expected, ...fields }, header.bytes);
  const transfer = { path, header, region: scratch, offset: 0, bytes };
  await disk.remove(path);
  const stored = await disk.store(transfer);
  if (!stored.ok) return stored;
  scratch.fill(0, bytes, incarnation + 1n);
  header.bytes.fill(0);
  const loaded = await disk.load(transfer);
  const removed = await disk.remove(path);
  if (!loaded.ok) return loaded;
  const sound = { ...expected, checksum };
  if (faultOfRead(decodeHeader(header.bytes), loaded, sound, incarnation) !== null) {
    return { ok: false, status: "damaged", errno: 0 };
  }
  return removed.ok ? { ok: true, allocatedBytes: stored.allocatedBytes } : removed;
}

const FIXES: Readonly<Record<string, string>> = {
  no_space: "free space on its file system, or set kv.ssd_dir to another one",
  read_only: "mount its file system writable, or set kv.ssd_dir to another",
  not_permitted: "give the folder to the user the agent runs as",
};

/** Creates the error SSD_UNAVAILABLE for a failed probe. */
export function unusable({ status, errno }: Extract<ProbeResult, { ok: false }>): HearthError {
  const detail = errno === 0 ? "" : `, errno ${errno}`;
  const text = `the SSD folder failed its self-test (${status.replaceAll("_", " ")}${detail})`;
  const fix = FIXES[status] ?? "check the kernel log for this drive, or remove kv.ssd_dir";
  return new HearthError("SSD_UNAVAILABLE", text, { fix });
}
