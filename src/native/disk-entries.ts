import type { DiskEntry } from "./block-disk.ts";

const FIXED_BYTES = 17;

/** Entries of a folder as the library packs them: two u64, the name's length, the name. */
export function* readEntries(packed: Uint8Array): Generator<DiskEntry> {
  const view = new DataView(packed.buffer, packed.byteOffset, packed.length);
  const decoder = new TextDecoder();
  let at = 0;
  while (at < packed.length) {
    const nameAt = at + FIXED_BYTES;
    const end = nameAt + view.getUint8(nameAt - 1);
    yield {
      name: decoder.decode(packed.subarray(nameAt, end)),
      bytes: Number(view.getBigUint64(at, true)),
      allocatedBytes: Number(view.getBigUint64(at + 8, true)),
    };
    at = end;
  }
}
