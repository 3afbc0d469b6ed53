import { getSystemErrorName } from "node:util";
import { assert, type Clock, systemClock } from "../core/index.ts";
import { DISK_METHOD, DISK_OPERATION, DISK_REGISTRATION, STATUS, STRUCTS } from "./abi.gen.ts";
import { Completions } from "./completions.ts";
import {
  type NativeBuffer,
  NativeError,
  nativeBuffer,
  readStruct,
  type StatusName,
  type StructValue,
  statusName,
  textBuffer,
} from "./memory.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";

export const HEADER_BYTES = 4096;

/** Result of a disk operation. `errno` is 0 if the kernel reported none. */
export type DiskOutcome<T> =
  | ({ readonly ok: true } & T)
  | { readonly ok: false; readonly status: StatusName; readonly errno: number };

/**
 * A 4 KiB buffer in native memory for a file's header. Its owner fills `bytes` before a store, or
 * reads it after a load. Disposing returns the buffer to the disk.
 */
export interface HeaderSlot extends Disposable {
  /**
   * Contents of the header. Do not access it after disposal, and do not dispose while an operation
   * uses it.
   */
  readonly bytes: Uint8Array;
}

/** One transfer of a block between a memory region and a file. */
export interface BlockTransfer {
  /** Path relative to the disk's folder: ASCII, at most 63 characters. */
  readonly path: string;
  readonly header: HeaderSlot;
  readonly region: Region;
  /** Byte offset of the payload in the region, a multiple of 4096. */
  readonly offset: number;
  /**
   * Length of the payload in bytes, at least 1. The transfer uses the region up to the end of the
   * payload's last page of 4096 bytes. A store writes zeros to the rest of that page, and a load
   * overwrites it with the zeros from the file.
   */
  readonly bytes: number;
  /**
   * For a store: name of an obsolete file to overwrite and rename, instead of creating a new file.
   * The outcome is `missing`, and nothing is written, if this file does not exist, has a second
   * hard link, or is not exactly as long as header and payload in whole pages. The name must be one
   * that the disk gives to obsolete files.
   */
  readonly spare?: string;
}

export interface DiskEntry {
  /** File name without its folder. */
  readonly name: string;
  readonly bytes: number;
  /** Disk space allocated to the file: st_blocks * 512. */
  readonly allocatedBytes: number;
}

const JOB = STRUCTS.DiskJob;
const DONE = STRUCTS.DiskDone;
const PATH_CHARACTERS_MAX = 63;
const LIST_BYTES = 65_536;
/** Milliseconds for which disposal waits for operations in flight. */
const DISPOSE_WAIT_MS = 5_000;

export interface DiskOptions {
  /** Existing folder that contains the files. */
  readonly folder: string;
  /**
   * Memory region used by most transfers. Registered with io_uring if possible, for faster
   * transfers.
   */
  readonly arena: Region | null;
  /** Maximum number of operations in flight, 1 to 1,024. */
  readonly depth: number;
  readonly method: "auto" | "io_uring" | "threads";
  /**
   * Number of threads for blocking system calls, at most 64. Default: chosen by the library for the
   * I/O method.
   */
  readonly threads?: number;
  readonly clock?: Clock;
}

interface Job {
  readonly operation: number;
  readonly path?: string;
  readonly target?: string;
  readonly header?: HeaderSlot;
  readonly region?: Region;
  readonly offset?: number | bigint;
  readonly bytes?: number;
  readonly buffer?: NativeBuffer;
}

interface Done {
  readonly result: bigint;
  readonly extra: bigint;
}

/**
 * Disks with an operation that the kernel never finished. They stay referenced, because the kernel
 * may still write to their memory.
 */
const orphanedDisks = new Set<BlockDisk>();

/**
 * Reads and writes whole blocks as files of one folder, with native threads or io_uring. Promises:
 *
 * - No call blocks the event loop, and no disk error throws.
 * - The kernel may access a transfer's span and header until the transfer's promise settles. It
 *   settles only when the kernel has finished. An operation cannot be cancelled.
 * - A file appears under its name only when it is complete. If the name is taken, the outcome is
 *   `exists` and the existing file is unchanged. A failed `store` leaves no file behind, except
 *   that the content of its `spare` file is undefined; the caller removes the spare.
 * - At most `depth` operations are in flight. Further ones fail immediately with `full`.
 */
export class BlockDisk implements AsyncDisposable {
  readonly depth: number;
  readonly #native: Native;
  readonly #handle: number;
  readonly #clock: Clock;
  readonly #headers: DiskHeaders;
  readonly #asked: DiskOptions["method"];
  readonly #job: NativeBuffer = nativeBuffer(JOB.size);
  readonly #jobView = new DataView(this.#job.bytes.buffer);
  /** Operations in flight. The waiter keeps the job's memory referenced. */
  readonly #running: Completions<{ job: Job; settle: (done: DiskOutcome<Done>) => void }>;
  #info: StructValue<"DiskInfo">;
  #closing: Promise<boolean> | null = null;

  constructor(native: Native, options: DiskOptions) {
    this.#native = native;
    this.#clock = options.clock ?? systemClock;
    this.#asked = options.method;
    this.depth = options.depth;
    this.#headers = new DiskHeaders(options.depth);
    const request = {
      headers: BigInt(this.#headers.address),
      arena: BigInt(options.arena?.handle ?? 0),
      depth: options.depth,
      threads: options.threads ?? 0,
      method: DISK_METHOD[options.method],
      reserved: 0,
    };
    this.#info = native.exchange("hearth_disk_create", ["DiskRequest", request], "DiskInfo");
    this.#handle = Number(this.#info.handle);
    this.#running = new Completions(native, {
      reap: "hearth_disk_reap",
      handle: this.#handle,
      entryBytes: DONE.size,
      eventFd: this.#info.event_fd,
      deliver: (view, at) => this.#deliver(view, at),
    });
  }

  /** Opens the folder. Must be the first operation on a disk. */
  async open(folder: string): Promise<DiskOutcome<Done>> {
    const buffer = textBuffer(folder);
    const opened = await this.#run({ operation: DISK_OPERATION.open, buffer });
    this.#readInfo();
    return opened;
  }

  #readInfo(): void {
    const out = nativeBuffer(STRUCTS.DiskInfo.size).bytes;
    this.#native.call("hearth_disk_info", this.#handle, out);
    this.#info = readStruct("DiskInfo", out);
  }

  /** I/O method in use. `methodReason` says why it was chosen. */
  get method(): "io_uring" | "threads" {
    return this.#info.method === DISK_METHOD.io_uring ? "io_uring" : "threads";
  }

  get methodReason(): string {
    const { method_errno: errno } = this.#info;
    if (errno !== 0) return `io_uring refused: ${getSystemErrorName(-errno)}`;
    return this.#asked === "auto" ? "io_uring is available" : "configured";
  }

  /** True if files are opened with O_DIRECT. */
  get direct(): boolean {
    return this.#info.direct === 1;
  }

  /** True if the arena is registered with io_uring. False while `registering` is true. */
  get registered(): boolean {
    return this.#registration === DISK_REGISTRATION.registered;
  }

  get registering(): boolean {
    return this.#registration === DISK_REGISTRATION.under_way;
  }

  /**
   * Returns the state of the arena's registration. Asks the library while registration is in
   * progress.
   */
  get #registration(): number {
    const isLater = this.#info.registered === DISK_REGISTRATION.under_way;
    if (isLater && this.#closing === null) this.#readInfo();
    return this.#info.registered;
  }

  /** Number of operations in flight. */
  get inFlight(): number {
    return this.#running.size;
  }

  /** Claims a header for a transfer. Returns null if all `depth` headers are claimed. */
  claimHeader(): HeaderSlot | null {
    return this.#headers.claim();
  }

  /** Writes header and payload to a new file, or to the file named by `spare`. */
  async store(transfer: BlockTransfer): Promise<DiskOutcome<{ readonly allocatedBytes: number }>> {
    const { spare: target, ...rest } = transfer;
    const job = { operation: DISK_OPERATION.store, ...rest };
    const done = await this.#run(target === undefined ? job : { ...job, target });
    return done.ok ? { ok: true, allocatedBytes: Number(done.result) } : done;
  }

  /**
   * Reads header and payload. `fileBytes` is the file's size. `checksum` is the XXH3-64 of the
   * payload in the region after the read. The outcome is `short` if the file is shorter than header
   * and payload. The caller verifies the content.
   */
  async load(
    transfer: BlockTransfer,
  ): Promise<DiskOutcome<{ readonly checksum: bigint; readonly fileBytes: number }>> {
    const done = await this.#run({ operation: DISK_OPERATION.load, ...transfer });
    if (!done.ok) return done;
    return { ok: true, checksum: done.result, fileBytes: Number(done.extra) };
  }

  /** Reads only the header of a file. */
  async peek(
    path: string,
    header: HeaderSlot,
  ): Promise<DiskOutcome<{ readonly fileBytes: number }>> {
    const done = await this.#run({ operation: DISK_OPERATION.peek, path, header });
    return done.ok ? { ok: true, fileBytes: Number(done.extra) } : done;
  }

  /** Removes a file. The outcome is `missing` if it does not exist. */
  remove(path: string): Promise<DiskOutcome<object>> {
    return this.#run({ operation: DISK_OPERATION.remove, path });
  }

  /** Renames a file within the folder. The outcome is `exists` if the target exists. */
  rename(from: string, to: string): Promise<DiskOutcome<object>> {
    return this.#run({ operation: DISK_OPERATION.rename, path: from, target: to });
  }

  /**
   * Lists the files and folders directly in `path`, in any order. `path` is relative to the disk's
   * folder ("" is the folder itself). Entries created or removed during the call may be missing or
   * listed.
   */
  async list(path: string): Promise<DiskOutcome<{ readonly entries: readonly DiskEntry[] }>> {
    const entries: DiskEntry[] = [];
    const buffer = nativeBuffer(LIST_BYTES);
    let offset = 0n;
    while (true) {
      const page = await this.#run({ operation: DISK_OPERATION.list, path, offset, buffer });
      if (!page.ok) return page;
      if (page.result === 0n) return { ok: true, entries };
      entries.push(...readEntries(buffer.bytes.subarray(0, Number(page.result))));
      offset = page.extra;
    }
  }

  /** Makes all stores and removals that have completed durable across a power loss (syncfs). */
  sync(): Promise<DiskOutcome<object>> {
    return this.#run({ operation: DISK_OPERATION.sync });
  }

  /** Returns the free and total bytes of the file system, without the space reserved for root. */
  async space(): Promise<DiskOutcome<{ readonly freeBytes: number; readonly totalBytes: number }>> {
    const done = await this.#run({ operation: DISK_OPERATION.space });
    if (!done.ok) return done;
    return { ok: true, freeBytes: Number(done.result), totalBytes: Number(done.extra) };
  }

  #run(job: Job): Promise<DiskOutcome<Done>> {
    if (this.#closing) return Promise.resolve({ ok: false, status: "closed", errno: 0 });
    return new Promise((settle) => {
      const token = this.#running.wait({ job, settle });
      this.#write(token, job);
      const code = this.#native.symbols.hearth_disk_submit(this.#handle, this.#job.bytes);
      if (code >= 0) return;
      this.#running.forget(token);
      settle({ ok: false, status: statusName(code), errno: 0 });
    });
  }

  #write(token: number, job: Job): void {
    const view = this.#jobView;
    const { fields } = JOB;
    view.setBigUint64(fields.token.offset, BigInt(token), true);
    view.setBigUint64(fields.region.offset, BigInt(job.region?.handle ?? 0), true);
    view.setBigUint64(fields.offset.offset, BigInt(job.offset ?? 0), true);
    view.setBigUint64(fields.bytes.offset, BigInt(job.bytes ?? 0), true);
    view.setBigUint64(fields.buffer.offset, BigInt(job.buffer?.address ?? 0), true);
    view.setBigUint64(fields.buffer_bytes.offset, BigInt(job.buffer?.bytes.length ?? 0), true);
    view.setUint32(fields.operation.offset, job.operation, true);
    const header = job.header === undefined ? 0 : this.#headers.indexOf(job.header);
    view.setUint32(fields.header.offset, header, true);
    this.#writePath(fields.path.offset, job.path ?? "");
    this.#writePath(fields.target.offset, job.target ?? "");
  }

  #writePath(at: number, path: string): void {
    assert(/^[\x20-\x7e]*$/.test(path), "a path is ASCII");
    assert(path.length <= PATH_CHARACTERS_MAX, "a path has at most 63 characters");
    const { bytes } = this.#job;
    bytes.fill(0, at, at + PATH_CHARACTERS_MAX + 1);
    for (let i = 0; i < path.length; i++) bytes[at + i] = path.charCodeAt(i);
  }

  #deliver(view: DataView, at: number): void {
    const { fields } = DONE;
    const token = Number(view.getBigUint64(at + fields.token.offset, true));
    const waiting = this.#running.of(token);
    this.#running.forget(token);
    const status = view.getInt32(at + fields.status.offset, true);
    if (status < 0) {
      const errno = view.getInt32(at + fields.errno.offset, true);
      waiting.settle({ ok: false, status: statusName(status), errno });
      return;
    }
    waiting.settle({
      ok: true,
      result: view.getBigUint64(at + fields.result.offset, true),
      extra: view.getBigUint64(at + fields.extra.offset, true),
    });
  }

  /**
   * Rejects further operations with `closed` and waits at most `ms` for those in flight. Returns
   * false if the kernel has not finished some: their memory is never freed, and their promises
   * never settle.
   */
  close(ms: number): Promise<boolean> {
    this.#closing ??= this.#close(ms);
    return this.#closing;
  }

  async #close(ms: number): Promise<boolean> {
    const { promise: late, resolve } = Promise.withResolvers<void>();
    using _timer = this.#clock.after(ms, resolve);
    await Promise.race([this.#running.idle(), late]);
    await this.#running.stop();
    const code = this.#native.symbols.hearth_disk_close(this.#handle);
    if (code === 0) return true;
    assert(statusName(code) === "busy", "a disk is closed or busy");
    orphanedDisks.add(this);
    return false;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close(DISPOSE_WAIT_MS);
  }
}

/**
 * Opens a disk on an existing folder. Throws NativeError if the folder cannot be opened (`missing`,
 * `not_permitted`, ...), if io_uring is required but unavailable, or if memory or threads are
 * insufficient.
 */
export async function openDisk(native: Native, options: DiskOptions): Promise<BlockDisk> {
  const disk = new BlockDisk(native, options);
  const opened = await disk.open(options.folder);
  const refused = options.method === "io_uring" && disk.method !== "io_uring";
  if (opened.ok && !refused) return disk;
  await disk.close(0);
  if (!opened.ok) throw new NativeError("openDisk", STATUS[opened.status], opened.errno);
  throw new NativeError("openDisk", STATUS.unsupported, 0);
}

const FIXED_BYTES = 17;

/**
 * Decodes the library's directory entries. Each is two u64 (size and allocated bytes), the length
 * of the name, and the name.
 */
function* readEntries(packed: Uint8Array): Generator<DiskEntry> {
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

/**
 * A header with its index in the disk's header memory. After disposal, `bytes` can still be read,
 * but the index may belong to another header.
 */
interface NumberedHeader extends HeaderSlot {
  readonly index: number;
}

/** All headers of a disk, in one allocation aligned for direct I/O. */
class DiskHeaders {
  readonly #memory: NativeBuffer;
  readonly #first: number;
  readonly #free: number[];
  readonly #claimed = new Set<HeaderSlot>();

  constructor(count: number) {
    this.#memory = nativeBuffer((count + 1) * HEADER_BYTES);
    this.#first = (HEADER_BYTES - (this.#memory.address % HEADER_BYTES)) % HEADER_BYTES;
    this.#free = Array.from({ length: count }, (_, index) => count - 1 - index);
  }

  /** Address of the first header, which all others follow. */
  get address(): number {
    return this.#memory.address + this.#first;
  }

  claim(): NumberedHeader | null {
    const index = this.#free.pop();
    if (index === undefined) return null;
    const from = this.#first + index * HEADER_BYTES;
    const bytes = this.#memory.bytes.subarray(from, from + HEADER_BYTES);
    const slot: NumberedHeader = {
      index,
      bytes,
      [Symbol.dispose]: () => {
        if (this.#claimed.delete(slot)) this.#free.push(index);
      },
    };
    this.#claimed.add(slot);
    return slot;
  }

  /** Returns the index of a header. Fails unless the header is claimed from this disk. */
  indexOf(slot: HeaderSlot): number {
    assert(this.#claimed.has(slot), "the header is claimed from this disk");
    return (slot as NumberedHeader).index;
  }
}
