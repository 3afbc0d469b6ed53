import { type Pointer, toArrayBuffer } from "bun:ffi";
import { assert } from "../core/index.ts";
import { STATUS, STRUCTS } from "./abi.gen.ts";
import { type NativeBuffer, NativeError, nativeBuffer, writeStruct, writeU64 } from "./memory.ts";
import type { Native } from "./native.ts";

/** Whether to use a feature that the kernel may refuse: never, if possible, or fail without it. */
export type Wish = "off" | "try" | "require";

const WISHES: Record<Wish, number> = { off: 0, try: 1, require: 2 };
const COPY = STRUCTS.CopyRequest.fields;
const NOTHING_WRONG = 0xffff_ffff_ffff_ffffn;
const FLAG_LOCK_REFUSED = 1;
/** errno that the kernel returns for a NUMA node that does not exist. */
const EINVAL = 22;
const HUGE_PAGE_BYTES = 2 * 2 ** 20;
/** Maximum bytes of one Uint8Array over native memory in Bun. */
const VIEW_BYTES_MAX = 4 * 2 ** 30;
const WINDOW_BYTES = 2 ** 30;

export interface RegionState {
  /** Bytes of the region that have physical memory so far. */
  readonly populatedBytes: number;
  readonly lockedBytes: number;
  /**
   * Bytes of `populatedBytes` in transparent huge pages. Excludes huge pages that the operator
   * reserved.
   */
  readonly hugeBytes: number;
  /** True if `lockMemory` is `try` and the kernel refused to lock some memory. */
  readonly lockRefused: boolean;
}

/**
 * Shared memory: the arena of this process, or another process's arena mapped into this one.
 * Callers address it by offset and length; native code checks them against the region's size.
 */
export class Region implements Disposable {
  readonly handle: number;
  readonly bytes: number;
  readonly fd: number;
  readonly pageBytes: number;
  readonly #native: Native;
  readonly #windows: Uint8Array[] = [];
  readonly #request: NativeBuffer = nativeBuffer(64);
  /**
   * Buffer for the arguments of a copy. Written as 32-bit words: writing bigints would take as long
   * as copying 10 KiB.
   */
  readonly #copyRequest: NativeBuffer = nativeBuffer(STRUCTS.CopyRequest.size);
  readonly #copyWords = new Uint32Array(this.#copyRequest.bytes.buffer);
  readonly #answer = new BigUint64Array(new ArrayBuffer(8));
  readonly #answerBytes = new Uint8Array(this.#answer.buffer);

  private constructor(native: Native, handle: number, bytes: number, fd: number, page: number) {
    this.#native = native;
    this.handle = handle;
    this.bytes = bytes;
    this.fd = fd;
    this.pageBytes = page;
  }

  /** Creates an arena. Throws NativeError: `no_memory`, `not_permitted`, `bad_request`. */
  static create(
    native: Native,
    options: { readonly bytes: number; readonly hugePages: Wish; readonly lockMemory: Wish },
  ): Region {
    const request = {
      bytes: BigInt(options.bytes),
      huge_pages: WISHES[options.hugePages],
      lock_memory: WISHES[options.lockMemory],
    };
    const call = "hearth_region_create";
    const info = native.exchange(call, ["RegionRequest", request], "RegionInfo");
    return new Region(native, Number(info.handle), options.bytes, info.fd, info.page_bytes);
  }

  /**
   * Takes over the arena that an earlier process created, received as file descriptor `fd`. The
   * result works like a region made by `create` that contains the existing bytes, and all of it
   * counts as populated. The region then owns `fd`, which is closed on exec. On failure, throws
   * NativeError and leaves `fd` to the caller: `out_of_range` if the size differs, `not_permitted`
   * if the seals differ, `no_memory` and others if the memory cannot be mapped or locked.
   */
  static adopt(
    native: Native,
    options: { readonly fd: number; readonly bytes: number; readonly lockMemory: Wish },
  ): Region {
    const request = {
      bytes: BigInt(options.bytes),
      fd: options.fd,
      lock_memory: WISHES[options.lockMemory],
    };
    const info = native.exchange("hearth_region_adopt", ["AdoptRequest", request], "RegionInfo");
    return new Region(native, Number(info.handle), options.bytes, info.fd, info.page_bytes);
  }

  /**
   * Maps an arena of another process, received as file descriptor `fd`. The region then owns `fd`.
   */
  static map(
    native: Native,
    options: { readonly fd: number; readonly bytes: number; readonly writable: boolean },
  ): Region {
    const request = {
      bytes: BigInt(options.bytes),
      fd: options.fd,
      writable: options.writable ? 1 : 0,
    };
    const info = native.exchange("hearth_region_map", ["MapRequest", request], "RegionInfo");
    return new Region(native, Number(info.handle), options.bytes, info.fd, info.page_bytes);
  }

  /**
   * Returns the first `bytes` bytes of the region as memory, not a copy. Only for regions that are
   * never closed: access to the memory of a closed region crashes the process.
   */
  view(bytes: number): NativeBuffer {
    assert(bytes <= this.bytes && bytes <= VIEW_BYTES_MAX, "the view lies inside the region");
    const { address } = this.#native.regionInfo(this.handle);
    const at = Number(address);
    return { bytes: new Uint8Array(toArrayBuffer(at as Pointer, 0, bytes)), address: at };
  }

  /**
   * Returns a span of the region, at most 1 GiB, as memory, not a copy. Only for regions that are
   * never closed. Fast: it slices an array that is created once per GiB.
   */
  span(offset: number, bytes: number): Uint8Array {
    assert(offset >= 0 && offset + bytes <= this.bytes, "the span lies inside the region");
    assert(bytes <= WINDOW_BYTES, "a span has at most half the length of a window");
    const at = offset % WINDOW_BYTES;
    return this.#window((offset - at) / WINDOW_BYTES).subarray(at, at + bytes);
  }

  /**
   * Returns the memory that starts at `index` GiB, as one array. It covers 2 GiB, so that every
   * span of at most 1 GiB lies within one array.
   */
  #window(index: number): Uint8Array {
    const known = this.#windows[index];
    if (known !== undefined) return known;
    const offset = index * WINDOW_BYTES;
    const { address } = this.#native.regionInfo(this.handle);
    const bytes = Math.min(2 * WINDOW_BYTES, this.bytes - offset);
    const window = new Uint8Array(toArrayBuffer((Number(address) + offset) as Pointer, 0, bytes));
    this.#windows[index] = window;
    return window;
  }

  state(): RegionState {
    const info = this.#native.regionInfo(this.handle);
    return {
      populatedBytes: Number(info.populated_bytes),
      lockedBytes: Number(info.locked_bytes),
      hugeBytes: info.huge_pages * HUGE_PAGE_BYTES,
      lockRefused: (info.flags & FLAG_LOCK_REFUSED) !== 0,
    };
  }

  /**
   * Copies `bytes` bytes from the start of `from` to `offset` in the region. Returns their XXH3-64
   * if `checksum` is true, otherwise 0.
   */
  copyIn(offset: number, from: NativeBuffer, bytes: number, checksum: boolean): bigint {
    return this.#copy("hearth_region_copy_in", offset, from, bytes, checksum);
  }

  /**
   * Copies `bytes` bytes at `offset` in the region to the start of `into`. Returns their XXH3-64 if
   * `checksum` is true, otherwise 0.
   */
  copyOut(offset: number, into: NativeBuffer, bytes: number, checksum: boolean): bigint {
    return this.#copy("hearth_region_copy_out", offset, into, bytes, checksum);
  }

  #copy(
    call: "hearth_region_copy_in" | "hearth_region_copy_out",
    offset: number,
    buffer: NativeBuffer,
    bytes: number,
    checksum: boolean,
  ): bigint {
    assert(bytes <= buffer.bytes.length, "the copy fits the buffer");
    const words = this.#copyWords;
    writeU64(words, COPY.region.offset, this.handle);
    writeU64(words, COPY.offset.offset, offset);
    writeU64(words, COPY.bytes.offset, bytes);
    writeU64(words, COPY.buffer.offset, buffer.address);
    words[COPY.checksum.offset / 4] = checksum ? 1 : 0;
    const code = this.#native.symbols[call](this.#copyRequest.bytes, this.#answerBytes);
    this.#native.check(call, code);
    return checksum ? this.#answer[0] : 0n;
  }

  /** Returns the XXH3-64 of a span. */
  checksum(offset: number, bytes: number): bigint {
    this.#span(offset, bytes, 0n);
    this.#native.call("hearth_region_checksum", this.#request.bytes, this.#answerBytes);
    return this.#answer[0];
  }

  /** Fills a span with pseudorandom bytes derived from `seed`, for tests. */
  fill(offset: number, bytes: number, seed: bigint): void {
    this.#span(offset, bytes, seed);
    this.#native.call("hearth_region_fill", this.#request.bytes);
  }

  /**
   * Makes the kernel allocate physical memory of the span from this NUMA node while the node has
   * free memory. Returns false if the kernel does not know the node; memory then comes from any
   * node.
   */
  preferNode(offset: number, bytes: number, node: number): boolean {
    const bind = this.#native.symbols.hearth_region_bind;
    const code = bind(this.handle, offset, bytes, node);
    if (code === STATUS.unsupported || code === STATUS.not_permitted) return false;
    if (code === STATUS.system && this.#native.symbols.hearth_last_errno() === EINVAL) return false;
    this.#native.check("hearth_region_bind", code);
    return true;
  }

  /**
   * Compares a span with the bytes that `fill` writes for `seed`. Returns the offset of the first
   * difference. Null if there is none.
   */
  firstWrong(offset: number, bytes: number, seed: bigint): number | null {
    this.#span(offset, bytes, seed);
    this.#native.call("hearth_region_check", this.#request.bytes, this.#answerBytes);
    const at = this.#answer[0];
    return at === NOTHING_WRONG ? null : Number(at);
  }

  #span(offset: number, bytes: number, seed: bigint): void {
    const region = BigInt(this.handle);
    const span = { region, offset: BigInt(offset), bytes: BigInt(bytes), seed };
    writeStruct("SpanRequest", span, this.#request.bytes);
  }

  /** Unmaps the memory and closes the region. Throws if native operations still use it. */
  [Symbol.dispose](): void {
    const code = this.#native.symbols.hearth_region_close(this.handle);
    if (code < 0) throw new NativeError("hearth_region_close", code, 0);
  }
}
