import { HearthError } from "../../core/index.ts";
import type { BlockDisk, HeaderSlot, Region, StatusName } from "../../native/index.ts";
import { decodeHeader, encodeHeader, fileBytesOf } from "../kvb/index.ts";
import { faultOfRead } from "./block-files.ts";

export type ProbeResult =
  | { readonly ok: true; readonly allocatedBytes: number }
  | { readonly ok: false; readonly status: StatusName | "damaged"; readonly errno: number };

/** Of the block that is written: with its header three pages, so that units of two are seen. */
export const PROBE_BYTES = 8192;
export const PROBE_FILE_BYTES = fileBytesOf(PROBE_BYTES);
const ZERO_KEY = new Uint8Array(32);

/**
 * Writes one small block, reads it back, verifies it like any other and removes it: what the tier
 * does at its start, and to find out whether a disk that refused takes blocks again. `scratch` is a
 * region of at least `PROBE_BYTES` that nobody else uses meanwhile.
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
  no_space: "free space on its file system, or set kv.ssd_dir to another",
  read_only: "mount its file system writable, or set kv.ssd_dir to another",
  not_permitted: "give the folder to the user the agent runs as",
};

/** SSD_UNAVAILABLE, in words. */
export function unusable({ status, errno }: Extract<ProbeResult, { ok: false }>): HearthError {
  const detail = errno === 0 ? "" : `, errno ${errno}`;
  const text = `the SSD folder failed its self-test (${status.replaceAll("_", " ")}${detail})`;
  const fix = FIXES[status] ?? "look at the kernel log for this drive, or remove kv.ssd_dir";
  return new HearthError("SSD_UNAVAILABLE", text, { fix });
}
