import { encodeHeader } from "../../kvb/index.ts";
import type { BlockDisk, HeaderSlot, Region, StatusName } from "../../native/index.ts";
import { faultOfRead } from "./block-files.ts";

export type ProbeResult =
  | { readonly ok: true; readonly allocatedBytes: number }
  | { readonly ok: false; readonly status: StatusName | "damaged"; readonly errno: number };

const ZERO_KEY = new Uint8Array(32);

/**
 * Writes one small block, reads it back, verifies it like any other and removes it: what the tier
 * does at its start, and to find out whether a disk that refused takes blocks again. `scratch` is a
 * region of at least 4096 bytes that nobody else uses meanwhile.
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
  const bytes = 4096;
  scratch.fill(0, bytes, incarnation);
  const checksum = scratch.checksum(0, bytes);
  const expected = { digest: ZERO_KEY, layer: 0, namespaceKey: ZERO_KEY, parent: null, bytes };
  const fields = { payloadBytes: bytes, payloadChecksum: checksum, sequence: 0, writtenMs: 0 };
  encodeHeader({ ...expected, ...fields, incarnation }, header.bytes);
  const transfer = { path, header, region: scratch, offset: 0, bytes };
  await disk.remove(path);
  const stored = await disk.store(transfer);
  if (!stored.ok) return stored;
  scratch.fill(0, bytes, incarnation + 1n);
  header.bytes.fill(0);
  const loaded = await disk.load(transfer);
  const removed = await disk.remove(path);
  if (!loaded.ok) return loaded;
  if (faultOfRead(header.bytes, loaded, { ...expected, checksum }) !== null) {
    return { ok: false, status: "damaged", errno: 0 };
  }
  return removed.ok ? { ok: true, allocatedBytes: stored.allocatedBytes } : removed;
}
