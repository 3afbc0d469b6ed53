import { assert } from "../core/index.ts";
import { STRUCTS } from "./abi.gen.ts";
import { type NativeBuffer, nativeBuffer } from "./buffers.ts";
import { writeU64 } from "./layout.ts";
import type { Native } from "./native.ts";
import type { Queue } from "./queue.ts";
import type { Region } from "./region.ts";

export const MAC_BYTES = 16;
export const MAC_KEY_BYTES = 16;

const REQUEST_BYTES = STRUCTS.MacRequest.size;
const FIELDS = STRUCTS.MacRequest.fields;

/** A block in a region, by what its MAC covers. */
export interface MacBlock {
  readonly region: Region;
  readonly offset: number;
  /** Length of the block. */
  readonly bytes: number;
  readonly digest: Uint8Array;
  readonly layer: number;
}

/**
 * AEGIS-128L MACs of blocks under one key: over digest, layer, length and payload. The key stays in
 * this object.
 */
export class BlockMacs {
  readonly #native: Native;
  readonly #key: Uint8Array;
  readonly #request: NativeBuffer = nativeBuffer(REQUEST_BYTES);
  readonly #sum = new BigUint64Array(new ArrayBuffer(8));
  readonly #sumBytes = new Uint8Array(this.#sum.buffer);

  /** `key`: 16 bytes. */
  constructor(native: Native, key: Uint8Array) {
    assert(key.length === MAC_KEY_BYTES, "a MAC key has 16 bytes");
    this.#native = native;
    this.#key = key.slice();
  }

  /** Copies `from` into the region and writes the MAC to `mac`; the XXH3-64 of the bytes. */
  copyIn(block: MacBlock, from: NativeBuffer, mac: Uint8Array): bigint {
    assert(block.bytes <= from.bytes.length, "the copy fits the buffer");
    this.#fill(this.#request, block, mac, from.address);
    const call = this.#native.symbols.hearth_region_mac_in;
    this.#native.check("hearth_region_mac_in", call(this.#request.bytes, this.#sumBytes));
    const at = FIELDS.mac.offset;
    mac.set(this.#request.bytes.subarray(at, at + MAC_BYTES));
    return this.#sum[0]!;
  }

  /** Copies out of the region into `into`. True: the bytes copied have the MAC. */
  copyOut(block: MacBlock, into: NativeBuffer, mac: Uint8Array): boolean {
    assert(block.bytes <= into.bytes.length, "the copy fits the buffer");
    this.#fill(this.#request, block, mac, into.address);
    const call = this.#native.symbols.hearth_region_mac_out;
    return this.#native.check("hearth_region_mac_out", call(this.#request.bytes)) === 1;
  }

  /** Whether the region's bytes have the MAC. About 100 µs a MiB. */
  check(block: MacBlock, mac: Uint8Array): boolean {
    this.#fill(this.#request, block, mac, 0);
    const call = this.#native.symbols.hearth_region_mac_check;
    return this.#native.check("hearth_region_mac_check", call(this.#request.bytes)) === 1;
  }

  /** As `check`, on a native thread. Null: the queue is closed. */
  async checkLater(queue: Queue, block: MacBlock, mac: Uint8Array): Promise<boolean | null> {
    const request = nativeBuffer(REQUEST_BYTES);
    this.#fill(request, block, mac, 0);
    const { region, offset, bytes } = block;
    while (true) {
      const done = await queue.mac(region, offset, bytes, request);
      if (done.ok) return done.result === 1n;
      if (done.status !== "full") return null;
      await queue.room();
    }
  }

  #fill(into: NativeBuffer, block: MacBlock, mac: Uint8Array, buffer: number): void {
    // Field by field: bigints and objects would cost 2 % of a copy of 1 MiB.
    const words = new Uint32Array(into.bytes.buffer);
    writeU64(words, FIELDS.region.offset, block.region.handle);
    writeU64(words, FIELDS.offset.offset, block.offset);
    writeU64(words, FIELDS.bytes.offset, block.bytes);
    writeU64(words, FIELDS.buffer.offset, buffer);
    into.bytes.set(block.digest, FIELDS.digest.offset);
    words[FIELDS.layer.offset / 4] = block.layer;
    into.bytes.set(this.#key, FIELDS.key.offset);
    into.bytes.set(mac, FIELDS.mac.offset);
  }
}
