import { type FileHandle, open, rename, stat } from "node:fs/promises";
import { type Clock, messageOf, stringifyJson, TokenBuckets } from "../core/index.ts";
import type { EventLog } from "../observability/activity/index.ts";
import type { Logger } from "../observability/index.ts";
import {
  blocksOf,
  type Command,
  type Operation,
  type RefusalCode,
  type Sender,
} from "./command.ts";
import type { ControlStats } from "./control-plane.ts";
import type { Receipt } from "./receipt.ts";

/**
 * Content of one line of the audit log: names, hashes, counts and messages; never block bytes,
 * tokens or secrets.
 */
export type AuditRecord = Readonly<Record<string, unknown>>;

export interface AuditLogOptions {
  readonly path: string;
  /** Maximum bytes of the log file, after which it is rotated. */
  readonly bytesMax: number;
  /** Number of rotated files to keep, named `path.1` (the latest) to `path.N`. */
  readonly filesMax: number;
  readonly log: Logger;
  readonly clock: Clock;
}

/** Maximum bytes of lines that wait to be written. Further lines are dropped. */
const WAITING_BYTES_MAX = 4 * 2 ** 20;
const WRITE_BYTES_MAX = 256 * 1024;
const MODE = 0o640;
const NEWLINE = 0x0a;

/**
 * Records every command: sender, content and outcome. Guarantees: adding a line never waits, throws
 * or uses unbounded memory, even if the disk is slow, and closing takes seconds at most. `dropped`
 * counts lines that did not fit in memory. The file is opened at construction, so that an unusable
 * path is reported before the first line.
 */
export class AuditLog implements AsyncDisposable {
  readonly #options: AuditLogOptions;
  #waiting: Buffer[] = [];
  #waitingBytes = 0;
  #writing: Promise<void> | null = null;
  #isClosed = false;
  #file: FileHandle | null = null;
  #length = 0;
  /** False if the path is a device or pipe, which has no length and must not be renamed. */
  #isRegular = false;
  /** True if the last write may have left a partial line at the end of the file. */
  #isTorn = false;
  #failure: string | null = null;
  #dropped = 0;
  /** Number of lines in the write that is in progress. */
  #atDisk = 0;

  constructor(options: AuditLogOptions) {
    this.#options = options;
    this.#writing = this.#begin();
  }

  /**
   * Why the latest lines were not written, or why the file could not be opened. Null after a
   * successful write.
   */
  get failure(): string | null {
    return this.#failure;
  }

  get dropped(): number {
    return this.#dropped;
  }

  write(record: AuditRecord): void {
    const line = Buffer.from(`${stringifyJson(record)}\n`);
    if (this.#isClosed) {
      this.#dropped++;
      return;
    }
    if (this.#waitingBytes + line.length > WAITING_BYTES_MAX) {
      this.#fail(1, `${this.#waitingBytes} bytes are waiting for the disk`);
      return;
    }
    this.#waiting.push(line);
    this.#waitingBytes += line.length;
    this.#writing ??= this.#writeAll();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    const { clock } = this.#options;
    if ((await within(clock, AUDIT_CLOSE_MS, this.#end())) !== null) return;
    const lines = this.#waiting.length + this.#atDisk;
    this.#waiting = [];
    this.#fail(lines, "the disk does not respond");
    this.#options.log.error("audit log closed with unwritten lines", { lines });
  }

  async #end(): Promise<true> {
    await this.#writing;
    await this.#file?.sync().catch(() => undefined);
    await this.#close();
    return true;
  }

  /** Opens the file. Never rejects. */
  async #begin(): Promise<void> {
    try {
      this.#file = await this.#open();
    } catch (thrown) {
      this.#fail(0, messageOf(thrown));
    }
    await this.#writeAll();
  }

  /** Writes all waiting lines. Never rejects. */
  async #writeAll(): Promise<void> {
    while (this.#waiting.length > 0) {
      const lines = this.#takeSome();
      this.#atDisk = lines.length;
      try {
        await this.#writeSome(Buffer.concat(lines));
        this.#wasWritten();
      } catch (thrown) {
        this.#fail(lines.length, messageOf(thrown));
        await this.#close();
      }
      this.#atDisk = 0;
    }
    this.#writing = null;
  }

  #takeSome(): Buffer[] {
    let bytes = 0;
    let count = 0;
    while (count < this.#waiting.length && bytes < WRITE_BYTES_MAX) {
      bytes += this.#waiting[count++].length;
    }
    this.#waitingBytes -= bytes;
    return this.#waiting.splice(0, count);
  }

  async #writeSome(bytes: Buffer): Promise<void> {
    await this.#reopenWhereMoved();
    const isFull = this.#length > 0 && this.#length + bytes.length > this.#options.bytesMax;
    if (isFull && this.#isRegular) await this.#rotate();
    this.#file ??= await this.#open();
    if (this.#isTorn) await this.#append(Buffer.from([NEWLINE]));
    await this.#append(bytes);
  }

  async #append(bytes: Buffer): Promise<void> {
    let at = 0;
    this.#isTorn = true;
    while (at < bytes.length) {
      const { bytesWritten } = await this.#file!.write(bytes, at);
      at += bytesWritten;
      this.#length += bytesWritten;
    }
    this.#isTorn = false;
  }

  async #open(): Promise<FileHandle> {
    const file = await open(this.#options.path, "a+", MODE);
    const found = await file.stat();
    const { size } = found;
    this.#length = size;
    this.#isRegular = found.isFile();
    if (size > 0 && this.#isRegular) {
      const last = Buffer.alloc(1);
      await file.read(last, 0, 1, size - 1);
      this.#isTorn = last[0] !== NEWLINE;
    }
    return file;
  }

  /** Opens the file again if another process, such as logrotate, has moved or removed it. */
  async #reopenWhereMoved(): Promise<void> {
    if (this.#file === null) {
      this.#file = await this.#open();
      return;
    }
    const [ours, theirs] = await Promise.all([
      this.#file.stat(),
      stat(this.#options.path).catch(() => null),
    ]);
    if (theirs?.ino === ours.ino && theirs.dev === ours.dev) return;
    await this.#close();
    this.#file = await this.#open();
  }

  async #rotate(): Promise<void> {
    const { path, filesMax } = this.#options;
    await this.#close();
    for (let number = filesMax; number >= 1; number--) {
      const from = number === 1 ? path : `${path}.${number - 1}`;
      await rename(from, `${path}.${number}`).catch(ignoreMissing);
    }
    this.#length = 0;
    this.#isTorn = false;
  }

  /**
   * Records a successful write. The failure is cleared only if the disk keeps up with the load, not
   * after every single write.
   */
  #wasWritten(): void {
    if (this.#failure === null || this.#waitingBytes > WAITING_BYTES_MAX / 2) return;
    this.#failure = null;
    this.#options.log.info("audit log recovered");
  }

  #fail(lines: number, why: string): void {
    this.#dropped += lines;
    const isKnown = this.#failure !== null;
    this.#failure = why;
    const { path, log } = this.#options;
    if (!isKnown) log.error("audit log write failed", { path, error: why });
  }

  async #close(): Promise<void> {
    const file = this.#file;
    this.#file = null;
    await file?.close().catch(() => undefined);
  }
}

function ignoreMissing(thrown: unknown): void {
  if ((thrown as NodeJS.ErrnoException).code !== "ENOENT") throw thrown;
}

/** The part of an audit log that the control plane uses to write records. */
export type AuditSink = Pick<AuditLog, keyof AuditLog>;

interface RecorderOptions {
  readonly clock: Clock;
  readonly events: EventLog;
  readonly log: Logger;
  readonly audit: AuditSink | null;
}

/**
 * Maximum refusals per second that get an audit line each, so that a flood does not rotate the
 * audit log.
 */
const REFUSALS_PER_SECOND = 100;

/** Maximum block names in one line. */
const NAMES_MAX = 8;

/** Counts commands and reports their outcomes to the audit log, the event log and the log. */
export class Recorder {
  readonly #options: RecorderOptions;
  readonly #commands: Record<string, number> = {};
  readonly #refused: Partial<Record<RefusalCode, number>> = {};
  readonly #lines = new TokenBuckets();
  #duplicates = 0;
  /** Number of refusals without a line since the last refusal that got one. */
  #unsaid = 0;

  constructor(options: RecorderOptions) {
    this.#options = options;
  }

  counts(): Pick<ControlStats, "commands" | "refused" | "duplicates"> {
    return {
      commands: { ...this.#commands },
      refused: { ...this.#refused } as Record<string, number>,
      duplicates: this.#duplicates,
    };
  }

  carriedOut(command: Command, receipt: Receipt, sender: Sender): void {
    const { type, status, issuer, id } = receipt;
    const key = `${type}/${status}`;
    this.#commands[key] = (this.#commands[key] ?? 0) + 1;
    this.#audit(command, receipt, sender, {});
    const blocks = blocksOf(command);
    this.#options.events.emit({ kind: "command", type, issuer, id, status, blocks });
  }

  duplicate(command: Command, receipt: Receipt, sender: Sender, elapsedMs: number): void {
    this.#duplicates++;
    this.#audit(command, receipt, sender, { duplicate: true, elapsed_ms: elapsedMs });
  }

  /** Records a refused command. `command` is null if the body could not be decoded. */
  refused(command: Command | null, receipt: Receipt, code: RefusalCode, sender: Sender): void {
    this.#refused[code] = (this.#refused[code] ?? 0) + 1;
    const { type, issuer, reason = "" } = receipt;
    const fields = { type, issuer, via: sender.via, from: sender.from, reason };
    this.#options.log.warn("command refused", fields);
    const nowMs = this.#options.clock.monotonicMs();
    if (!this.#lines.take("", nowMs, REFUSALS_PER_SECOND, REFUSALS_PER_SECOND)) {
      this.#unsaid++;
      return;
    }
    this.#audit(command, receipt, sender, this.#unsaid === 0 ? {} : { left_out: this.#unsaid });
    this.#unsaid = 0;
  }

  /** Records an operator's action that did not arrive as a command. */
  operation(operation: Operation, sender: Sender): void {
    const { type, blocks, names, status, reason, counts, elapsedMs } = operation;
    this.#write(sender, {
      issuer: sender.name,
      type,
      id: null,
      ...(blocks === null ? {} : { blocks }),
      ...(names.length === 0 ? {} : { names: names.slice(0, NAMES_MAX) }),
      status,
      ...(reason === null ? {} : { reason }),
      counts,
      elapsed_ms: elapsedMs,
    });
  }

  #audit(
    command: Command | null,
    receipt: Receipt,
    sender: Sender,
    more: Readonly<Record<string, unknown>>,
  ): void {
    this.#write(sender, {
      issuer: receipt.issuer,
      type: receipt.type,
      id: receipt.id,
      ...(command === null ? {} : whatOf(command)),
      status: receipt.status,
      ...(receipt.reason === undefined ? {} : { reason: receipt.reason }),
      counts: receipt.counts,
      elapsed_ms: receipt.elapsed_ms,
      ...more,
    });
  }

  #write(sender: Sender, what: Readonly<Record<string, unknown>>): void {
    const { audit, clock } = this.#options;
    audit?.write({
      time: new Date(clock.wallMs()).toISOString(),
      via: sender.via,
      from: sender.from,
      role: sender.role,
      ...(sender.broadcast ? { broadcast: true } : {}),
      ...what,
    });
  }
}

function whatOf(command: Command): Record<string, unknown> {
  return {
    ...(command.epoch === null ? {} : { epoch: command.epoch }),
    ...(command.owner === null ? {} : { owner: command.owner }),
    ...("leaseId" in command ? { lease: command.leaseId } : {}),
    ...(command.type === "Cache" ? { action: command.action.kind } : {}),
    ...(command.type === "Think" ? { transient: command.transient } : {}),
    blocks: blocksOf(command),
    ...namesOf(command),
  };
}

/** Returns the first block names, as written in the command. A line does not list all of them. */
function namesOf(command: Command): Record<string, unknown> {
  if (command.type === "Prune") return { after_block_hash: command.after.given };
  if (!("blocks" in command)) return {};
  return { names: command.blocks.slice(0, NAMES_MAX).map(({ given }) => given) };
}

/**
 * Maximum ms that shutdown waits for executing commands. It exceeds the time in which a hung disk
 * is detected.
 */
export const IDLE_MS = 12_000;
/** Maximum ms that shutdown waits for the last lines of the audit log. */
const AUDIT_CLOSE_MS = 2_000;
/** Maximum ms of the control plane's shutdown. */
export const CONTROL_STOP_MS = IDLE_MS + AUDIT_CLOSE_MS;

/** Returns the result of `work`, or null after `ms`. `work` itself continues. */
export async function within<T>(clock: Clock, ms: number, work: Promise<T>): Promise<T | null> {
  const late = Promise.withResolvers<null>();
  using _timer = clock.after(ms, () => late.resolve(null));
  return await Promise.race([work, late.promise]);
}
