import { getSystemErrorName } from "node:util";
import { assert, type Clock, systemClock } from "../core/index.ts";
import { DISK_METHOD, DISK_OPERATION, DISK_REGISTRATION, STATUS, STRUCTS } from "./abi.gen.ts";
import type { BlockDisk, BlockTransfer, DiskEntry, DiskOutcome, HeaderSlot } from "./block-disk.ts";
import { type NativeBuffer, nativeBuffer } from "./buffers.ts";
import { readEntries } from "./disk-entries.ts";
import { DiskHeaders } from "./disk-headers.ts";
import { EventReader } from "./event-reader.ts";
import { readStruct, type StructValue } from "./layout.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";
import { NativeError, statusName } from "./status.ts";

const JOB = STRUCTS.DiskJob;
const DONE = STRUCTS.DiskDone;
const REAP_MAX = 64;
const PATH_CHARACTERS_MAX = 63;
const LIST_BYTES = 65_536;
/** How long disposing waits for what is in flight. */
const DISPOSE_WAIT_MS = 5_000;

export interface DiskOptions {
  /** An existing folder. */
  readonly folder: string;
  /** The region that most transfers are to and from: registered with the ring where possible. */
  readonly arena: Region | null;
  /** Operations in flight at most, up to 1,024. */
  readonly depth: number;
  readonly method: "auto" | "io_uring" | "threads";
  /** Threads for calls that may block, up to 64; by default as many as the method wants. */
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

/** Disks that the kernel never let go: it may still write to their memory. */
const abandoned = new Set<NativeDisk>();

class NativeDisk implements BlockDisk {
  readonly depth: number;
  readonly #native: Native;
  readonly #handle: number;
  readonly #clock: Clock;
  readonly #headers: DiskHeaders;
  readonly #asked: DiskOptions["method"];
  readonly #job: NativeBuffer = nativeBuffer(JOB.size);
  readonly #jobView = new DataView(this.#job.bytes.buffer);
  readonly #done: NativeBuffer = nativeBuffer(DONE.size * REAP_MAX);
  readonly #doneView = new DataView(this.#done.bytes.buffer);
  /** By token; the job is kept for its memory's sake. */
  readonly #waiting = new Map<number, { job: Job; settle: (done: DiskOutcome<Done>) => void }>();
  readonly #events: EventReader;
  #info: StructValue<"DiskInfo">;
  #nextToken = 1;
  #onIdle: (() => void) | null = null;
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
    this.#events = new EventReader(this.#info.event_fd, () => this.#drain());
  }

  /** Opens the folder: the first operation of a disk. */
  async open(folder: string): Promise<DiskOutcome<Done>> {
    const text = new TextEncoder().encode(`${folder}\0`);
    const buffer = nativeBuffer(text.length);
    buffer.bytes.set(text);
    const opened = await this.#run({ operation: DISK_OPERATION.open, buffer });
    this.#readInfo();
    return opened;
  }

  #readInfo(): void {
    const out = nativeBuffer(STRUCTS.DiskInfo.size).bytes;
    const code = this.#native.symbols.hearth_disk_info(this.#handle, out);
    this.#native.check("hearth_disk_info", code);
    this.#info = readStruct("DiskInfo", out);
  }

  get method(): "io_uring" | "threads" {
    return this.#info.method === DISK_METHOD.io_uring ? "io_uring" : "threads";
  }

  get methodReason(): string {
    const { method_errno: errno } = this.#info;
    if (errno !== 0) return `io_uring is refused: ${getSystemErrorName(-errno)}`;
    return this.#asked === "auto" ? "io_uring works here" : "asked for";
  }

  get direct(): boolean {
    return this.#info.direct === 1;
  }

  get registered(): boolean {
    return this.#registration === DISK_REGISTRATION.registered;
  }

  get registering(): boolean {
    return this.#registration === DISK_REGISTRATION.under_way;
  }

  /** As it was last known, or, while it goes on, is now. */
  get #registration(): number {
    const isLater = this.#info.registered === DISK_REGISTRATION.under_way;
    if (isLater && this.#closing === null) this.#readInfo();
    return this.#info.registered;
  }

  get inFlight(): number {
    return this.#waiting.size;
  }

  claimHeader(): HeaderSlot | null {
    return this.#headers.claim();
  }

  async store(transfer: BlockTransfer): Promise<DiskOutcome<{ readonly allocatedBytes: number }>> {
    const { spare: target, ...rest } = transfer;
    const job = { operation: DISK_OPERATION.store, ...rest };
    const done = await this.#run(target === undefined ? job : { ...job, target });
    return done.ok ? { ok: true, allocatedBytes: Number(done.result) } : done;
  }

  async load(
    transfer: BlockTransfer,
  ): Promise<DiskOutcome<{ readonly checksum: bigint; readonly fileBytes: number }>> {
    const done = await this.#run({ operation: DISK_OPERATION.load, ...transfer });
    if (!done.ok) return done;
    return { ok: true, checksum: done.result, fileBytes: Number(done.extra) };
  }

  async peek(
    path: string,
    header: HeaderSlot,
  ): Promise<DiskOutcome<{ readonly fileBytes: number }>> {
    const done = await this.#run({ operation: DISK_OPERATION.peek, path, header });
    return done.ok ? { ok: true, fileBytes: Number(done.extra) } : done;
  }

  remove(path: string): Promise<DiskOutcome<object>> {
    return this.#run({ operation: DISK_OPERATION.remove, path });
  }

  rename(from: string, to: string): Promise<DiskOutcome<object>> {
    return this.#run({ operation: DISK_OPERATION.rename, path: from, target: to });
  }

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

  sync(): Promise<DiskOutcome<object>> {
    return this.#run({ operation: DISK_OPERATION.sync });
  }

  async space(): Promise<DiskOutcome<{ readonly freeBytes: number; readonly totalBytes: number }>> {
    const done = await this.#run({ operation: DISK_OPERATION.space });
    if (!done.ok) return done;
    return { ok: true, freeBytes: Number(done.result), totalBytes: Number(done.extra) };
  }

  #run(job: Job): Promise<DiskOutcome<Done>> {
    if (this.#closing) return Promise.resolve({ ok: false, status: "closed", errno: 0 });
    const token = this.#nextToken++;
    this.#write(token, job);
    const submit = this.#native.symbols.hearth_disk_submit;
    const code = submit(this.#handle, this.#job.bytes);
    if (code < 0) return Promise.resolve({ ok: false, status: statusName(code), errno: 0 });
    return new Promise((settle) => this.#waiting.set(token, { job, settle }));
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

  #drain(): void {
    let count: number;
    do {
      const reap = this.#native.symbols.hearth_disk_reap;
      count = this.#native.check(
        "hearth_disk_reap",
        reap(this.#handle, this.#done.bytes, REAP_MAX),
      );
      for (let i = 0; i < count; i++) this.#deliver(i * DONE.size);
    } while (count === REAP_MAX);
    if (this.#waiting.size === 0) this.#onIdle?.();
  }

  #deliver(at: number): void {
    const view = this.#doneView;
    const { fields } = DONE;
    const token = Number(view.getBigUint64(at + fields.token.offset, true));
    const waiting = this.#waiting.get(token);
    assert(waiting !== undefined, "a completion has somebody waiting");
    this.#waiting.delete(token);
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

  close(ms: number): Promise<boolean> {
    this.#closing ??= this.#close(ms);
    return this.#closing;
  }

  async #close(ms: number): Promise<boolean> {
    if (this.#waiting.size > 0) {
      await new Promise<void>((resolve) => {
        const timer = this.#clock.after(ms, resolve);
        this.#onIdle = () => {
          timer[Symbol.dispose]();
          resolve();
        };
      });
    }
    await this.#events.stop();
    const code = this.#native.symbols.hearth_disk_close(this.#handle);
    if (code === 0) return true;
    assert(statusName(code) === "busy", "a disk is closed or busy");
    abandoned.add(this);
    return false;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close(DISPOSE_WAIT_MS);
  }
}

/**
 * A disk on an existing folder. Throws NativeError where the folder cannot be opened (`missing`,
 * `not_permitted`, ...), where io_uring is demanded and refused, or where the host has neither
 * memory nor threads for it.
 */
export async function openDisk(native: Native, options: DiskOptions): Promise<BlockDisk> {
  const disk = new NativeDisk(native, options);
  const opened = await disk.open(options.folder);
  const refused = options.method === "io_uring" && disk.method !== "io_uring";
  if (opened.ok && !refused) return disk;
  await disk.close(0);
  if (!opened.ok) throw new NativeError("openDisk", STATUS[opened.status], opened.errno);
  throw new NativeError("openDisk", STATUS.unsupported, 0);
}
