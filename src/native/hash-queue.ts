import { assert } from "../core/index.ts";
import { OPERATION, STRUCTS } from "./abi.gen.ts";
import {
  EventReader,
  type NativeBuffer,
  NativeError,
  nativeBuffer,
  type StatusName,
  statusName,
  writeU64,
} from "./memory.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";

const SUBMISSION_BYTES = 48;
const COMPLETION_BYTES = 24;
const REAP_MAX = 256;
/** This bit is set in tokens of process watches, and clear in tokens of operations. */
const WATCH_BIT = 0x8000_0000;

/**
 * Result of an operation. The meaning of `result` depends on the operation; for example, it is a
 * checksum.
 */
export type Completed =
  | { readonly ok: true; readonly result: bigint }
  | { readonly ok: false; readonly status: StatusName; readonly errno: number };

export interface QueueOptions {
  /** Maximum number of operations in flight, a power of two. */
  readonly entries: number;
  readonly threads: number;
  /** Maximum number of processes watched at the same time. */
  readonly watches: number;
}

/**
 * Runs operations on native threads and returns promises. A thread adds each completion to a ring
 * and writes an eventfd. The queue then reads all completions in the ring, so that a burst causes
 * one wake-up of the event loop.
 */
export class Queue implements AsyncDisposable {
  readonly #native: Native;
  readonly #handle: number;
  readonly #entries: number;
  readonly #watches: number;
  readonly #submission: NativeBuffer = nativeBuffer(SUBMISSION_BYTES);
  readonly #submissionView: DataView;
  readonly #completions: NativeBuffer = nativeBuffer(COMPLETION_BYTES * REAP_MAX);
  readonly #completionView: DataView;
  readonly #waiting = new Map<number, (completed: Completed) => void>();
  readonly #watching = new Map<number, { pidFd: number; onDeath: () => void }>();
  readonly #events: EventReader;
  readonly #waitingForRoom: (() => void)[] = [];
  #nextToken = 1;
  /** Number of watches that ended since the completion ring was last read. */
  #unwatched = 0;
  #closed = false;

  constructor(native: Native, options: QueueOptions) {
    this.#native = native;
    this.#entries = options.entries;
    this.#watches = options.watches;
    const request = { ...options, reserved: 0 };
    const info = native.exchange("hearth_queue_create", ["QueueRequest", request], "QueueInfo");
    this.#handle = Number(info.handle);
    this.#submissionView = new DataView(this.#submission.bytes.buffer);
    this.#completionView = new DataView(this.#completions.bytes.buffer);
    this.#events = new EventReader(info.event_fd, () => this.#drain());
  }

  /** Number of operations that were submitted and have not completed. */
  get inFlight(): number {
    return this.#waiting.size;
  }

  /** Allocates physical memory for a span of a memory region. */
  populate(region: Region, offset: number, bytes: number): Promise<Completed> {
    return this.#submit(OPERATION.populate, region.handle, offset, bytes, 0n);
  }

  /** Computes the XXH3-64 of a span; it is returned in `result`. */
  checksum(region: Region, offset: number, bytes: number): Promise<Completed> {
    return this.#submit(OPERATION.checksum, region.handle, offset, bytes, 0n);
  }

  /**
   * Computes the MAC of a span and compares it with the MAC in `request`, an encoded `MacRequest`.
   * `result` is 1 if they match, otherwise 0.
   */
  async mac(
    region: Region,
    offset: number,
    bytes: number,
    request: NativeBuffer,
  ): Promise<Completed> {
    const address = BigInt(request.address);
    const done = await this.#submit(OPERATION.mac, region.handle, offset, bytes, address);
    // Keeps `request` referenced until the native thread has read it.
    assert(request.bytes.length > 0, "the request is in place until its completion");
    return done;
  }

  /** Completes without doing anything. `result` is `argument`. For tests and benchmarks. */
  nop(argument: bigint): Promise<Completed> {
    return this.#submit(OPERATION.nop, 0, 0, 0, argument);
  }

  #submit(
    operation: number,
    region: number,
    offset: number,
    bytes: number,
    argument: bigint,
  ): Promise<Completed> {
    if (this.#closed) return Promise.resolve({ ok: false, status: "closed", errno: 0 });
    if (this.#waiting.size >= this.#entries) {
      return Promise.resolve({ ok: false, status: "full", errno: 0 });
    }
    const token = this.#takeToken();
    const view = this.#submissionView;
    view.setBigUint64(0, BigInt(token), true);
    view.setBigUint64(8, BigInt(region), true);
    view.setBigUint64(16, BigInt(offset), true);
    view.setBigUint64(24, BigInt(bytes), true);
    view.setBigUint64(32, argument, true);
    view.setUint32(40, operation, true);
    const submit = this.#native.symbols.hearth_queue_submit;
    const code = submit(this.#handle, this.#submission.bytes, 1);
    if (code < 0) {
      return Promise.resolve({ ok: false, status: statusName(code), errno: 0 });
    }
    return new Promise((resolve) => this.#waiting.set(token, resolve));
  }

  /** Waits until operations have completed, so that a full queue may accept another one. */
  room(): Promise<void> {
    return new Promise((resolve) => this.#waitingForRoom.push(resolve));
  }

  #takeToken(): number {
    do {
      this.#nextToken = (this.#nextToken + 1) % WATCH_BIT;
    } while (this.#waiting.has(this.#nextToken) || this.#watching.has(this.#nextToken));
    return this.#nextToken;
  }

  /**
   * Calls `onDeath` once when the process behind `pidFd` has ended. The queue takes ownership of
   * the descriptor. Dispose the result to stop watching. Throws NativeError `full` if too many
   * processes are watched.
   */
  watch(pidFd: number, onDeath: () => void): Disposable {
    const token = this.#takeToken();
    this.#native.call("hearth_queue_watch", this.#handle, pidFd, WATCH_BIT + token);
    this.#watching.set(token, { pidFd, onDeath });
    return { [Symbol.dispose]: () => this.#unwatch(token) };
  }

  /**
   * Ends a watch and closes its descriptor. Correct whether or not the process's end has been
   * reported.
   */
  #unwatch(token: number): void {
    const watch = this.#watching.get(token);
    if (watch === undefined) return;
    this.#watching.delete(token);
    this.#native.symbols.hearth_queue_unwatch(this.#handle, watch.pidFd);
    this.#unwatched++;
    // Completions of ended watches occupy the ring until they are read.
    if (this.#unwatched === this.#watches) queueMicrotask(() => this.#closed || this.#drain());
  }

  #drain(): void {
    this.#unwatched = 0;
    let count: number;
    do {
      const { bytes } = this.#completions;
      count = this.#native.symbols.hearth_queue_reap(this.#handle, bytes, REAP_MAX);
      for (let i = 0; i < count; i++) this.#deliver(i * COMPLETION_BYTES);
    } while (count === REAP_MAX);
    if (count < 0) throw new NativeError("hearth_queue_reap", count, 0);
    // Wakes as many waiters as the queue can accept operations. A waiter that still finds the queue
    // full waits again, at the end of the list.
    const free = this.#entries - this.#waiting.size;
    for (const resolve of this.#waitingForRoom.splice(0, free)) resolve();
  }

  #deliver(at: number): void {
    const view = this.#completionView;
    const token = view.getUint32(at, true);
    if (token >= WATCH_BIT) {
      const watch = this.#watching.get(token - WATCH_BIT);
      this.#unwatch(token - WATCH_BIT);
      watch?.onDeath();
      return;
    }
    const status = view.getInt32(at + 16, true);
    const completed: Completed =
      status === 0
        ? { ok: true, result: view.getBigUint64(at + 8, true) }
        : { ok: false, status: statusName(status), errno: view.getInt32(at + 20, true) };
    const resolve = this.#waiting.get(token);
    assert(resolve !== undefined, "a completion has a waiter");
    this.#waiting.delete(token);
    resolve(completed);
  }

  /** Stops the threads. Pending operations resolve with status `closed`. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed) return;
    for (const token of [...this.#watching.keys()]) this.#unwatch(token);
    this.#closed = true;
    await this.#events.stop();
    this.#native.call("hearth_queue_close", this.#handle);
    for (const resolve of this.#waiting.values())
      resolve({ ok: false, status: "closed", errno: 0 });
    this.#waiting.clear();
    for (const resolve of this.#waitingForRoom.splice(0)) resolve();
  }
}

export const MAC_BYTES = 16;
export const MAC_KEY_BYTES = 16;

const REQUEST_BYTES = STRUCTS.MacRequest.size;
const FIELDS = STRUCTS.MacRequest.fields;

/** A block in a memory region, with the fields that its MAC covers. */
export interface MacBlock {
  readonly region: Region;
  readonly offset: number;
  /** Length of the block's payload in bytes. */
  readonly bytes: number;
  readonly digest: Uint8Array;
  readonly layer: number;
}

/**
 * Computes AEGIS-128L MACs of blocks under one key, over digest, layer, length and payload. Keeps
 * the key in memory.
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

  /**
   * Copies a block from `from` into the region and writes its MAC to `mac`. Returns the XXH3-64 of
   * the payload.
   */
  copyIn(block: MacBlock, from: NativeBuffer, mac: Uint8Array): bigint {
    assert(block.bytes <= from.bytes.length, "the copy fits the buffer");
    this.#fill(this.#request, block, mac, from.address);
    this.#native.call("hearth_region_mac_in", this.#request.bytes, this.#sumBytes);
    const at = FIELDS.mac.offset;
    mac.set(this.#request.bytes.subarray(at, at + MAC_BYTES));
    return this.#sum[0];
  }

  /** Copies a block from the region to `into`. Returns whether the copied bytes match the MAC. */
  copyOut(block: MacBlock, into: NativeBuffer, mac: Uint8Array): boolean {
    assert(block.bytes <= into.bytes.length, "the copy fits the buffer");
    this.#fill(this.#request, block, mac, into.address);
    const call = this.#native.symbols.hearth_region_mac_out;
    return this.#native.check("hearth_region_mac_out", call(this.#request.bytes)) === 1;
  }

  /**
   * Returns whether the block in the region matches the MAC. Blocks the thread for about 100 µs per
   * MiB.
   */
  check(block: MacBlock, mac: Uint8Array): boolean {
    this.#fill(this.#request, block, mac, 0);
    const call = this.#native.symbols.hearth_region_mac_check;
    return this.#native.check("hearth_region_mac_check", call(this.#request.bytes)) === 1;
  }

  /** Like `check`, on a native thread. Null if the queue is closed. */
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
    // Fields are written as 32-bit words: bigints and objects would add 2 % to the time of a 1 MiB
    // copy.
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
