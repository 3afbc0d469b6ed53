import { assert, type Clock } from "../../core/index.ts";
import { ChangeBatch, type ChangeChunk, ChangeLog } from "./change-log.ts";
import {
  type IndexChanges,
  type IndexOwner,
  IndexWorkerClient,
  type Opened,
  type OpenOrder,
  type RunProgress,
} from "./index-worker-client.ts";
import { BUSY_MS, SqliteWriter, type SqliteWriterOptions } from "./sqlite-writer.ts";
import { FIRST_RUN } from "./store/index-store.ts";

/** Maximum number of changes not committed yet. They take about 70 MB with their keys. */
const PENDING_MAX = 262_144;

/**
 * Index rows of blocks as columns. The first `count` entries are valid. All rows have the same
 * namespace and layer.
 */
export interface BlockRows {
  readonly count: number;
  readonly namespaceKey: Uint8Array;
  /**
   * Identifier of the namespace's MAC key, 16 bytes. Null if no block of the namespace was stored
   * with a MAC.
   */
  readonly macKeyId: Uint8Array | null;
  readonly layer: number;
  /** Digests, 32 bytes per row. */
  readonly digests: Uint8Array;
  /** Digests of the parents, 32 bytes per row. All zero: no parent. */
  readonly parents: Uint8Array;
  readonly bytes: Uint32Array;
  /** XXH3-64 of each block's payload. */
  readonly checksums: BigUint64Array;
  /** Number in the file name that distinguishes keys with the same short name. Usually 0. */
  readonly variants: Uint8Array;
  /** Unix time of the latest use in seconds, and number of uses (at most 65,535). */
  readonly lastSeen: Uint32Array;
  readonly uses: Uint16Array;
}

/** Index row of one block on SSD. */
export interface BlockRow {
  readonly namespaceKey: Uint8Array;
  /**
   * Identifier of the namespace's MAC key; see `BlockRows`. The index keeps the latest value per
   * namespace.
   */
  readonly macKeyId?: Uint8Array | null;
  readonly layer: number;
  readonly digest: Uint8Array;
  /** Digest of the parent; null if the block has no parent. */
  readonly parent: Uint8Array | null;
  readonly bytes: number;
  readonly checksum: bigint;
  readonly variant: number;
  readonly lastSeen: number;
  readonly uses: number;
  /**
   * Sequence number of the write within this run of the agent, from 1; 0 if recovery found the
   * block.
   */
  readonly sequence: number;
}

export interface AliasRow {
  readonly namespaceKey: Uint8Array;
  readonly layer: number;
  readonly digest: Uint8Array;
  /** The alias. 8 bytes: an engine hash, little-endian. 32 bytes: a SHA-256 page key. */
  readonly alias: Uint8Array;
}

/** State of the previous run of the agent, as recorded in the index. */
export interface PreviousRun {
  /**
   * Number that identifies the previous run. Null if the index is new or no run has used it;
   * recovery then reads the headers of all blocks.
   */
  readonly incarnation: bigint | null;
  /** Sequence number up to which the rows of all written blocks were committed. */
  readonly flushedSequence: number;
  /** True if that run closed the index after it had committed all changes. */
  readonly clean: boolean;
}

export interface IndexState {
  /** Reason why the index cannot be written at present; null if it can. */
  readonly failing: string | null;
  /** Number of changes not committed yet, and of changes dropped because too many were pending. */
  readonly pending: number;
  readonly dropped: number;
  readonly rows: number;
  /**
   * Path of an unusable index that was set aside at this start, and the reason; null if none was.
   */
  readonly setAside: { readonly path: string; readonly why: string } | null;
}

/**
 * Persistent record of the blocks on SSD, for the next start. Guarantees:
 *
 * - No call blocks the event loop or throws because of the disk. Changes are collected and
 *   committed in the background, in order. While the index fails they wait up to a limit; beyond it
 *   they are dropped and counted. The index is retried.
 * - Only `load*` reads the index, so that a failing index never stops reads of blocks.
 * - Changes for which `flush` returned true are committed. With `durable` they survive a power
 *   failure.
 */
export class SqliteIndex extends SqliteWriter<ChangeChunk> {
  readonly previous: PreviousRun;
  protected readonly log: ChangeLog;
  readonly #incarnation: bigint;
  readonly #sequences = new SequenceWatermark();
  /** Progress of the previous run, which commits keep writing during recovery. */
  readonly #inherited: RunProgress;
  #dropped = 0;
  #droppedAtFlush = 0;
  /**
   * True if a row of a block found by recovery was dropped: the next start must read all headers
   * again.
   */
  #isIncomplete = false;
  /** Number of the chunk of changes with which this run begins; null before `begin`. */
  #beginsAt: number | null = null;
  #isLoaded = false;

  constructor(
    worker: IndexWorkerClient,
    opened: Opened,
    options: SqliteWriterOptions & { readonly pendingMax?: number | undefined },
  ) {
    super(worker, opened, options);
    this.#incarnation = options.openOrder.incarnation;
    this.log = new ChangeLog(options.pendingMax ?? PENDING_MAX);
    this.#inherited = (opened.kind === "opened" ? opened.previous : null) ?? FIRST_RUN;
    const { incarnation, flushedSequence, clean } = this.#inherited;
    this.previous = { incarnation, flushedSequence, clean };
  }

  get state(): IndexState {
    const { failing, pending, rows, setAside } = this;
    return { failing, pending, dropped: this.#dropped, rows, setAside };
  }

  /**
   * Yields all rows as they were when the index was opened, grouped by namespace and layer, in each
   * group the least recently used blocks first. Call once, before `begin`. The rows were verified
   * when the index was opened: an index with a damaged row is set aside. Throws INDEX_FAILED if
   * reading fails midway.
   */
  async *loadBlocks(): AsyncIterable<BlockRows> {
    assert(!this.#isLoaded, "the blocks are loaded once");
    this.#isLoaded = true;
    yield* this.#load("blocks");
  }

  loadAliases(): AsyncIterable<readonly AliasRow[]> {
    return this.#load("aliases");
  }

  async *#load<Table extends "blocks" | "aliases">(table: Table) {
    for (;;) {
      assert(this.#beginsAt === null, "the index is loaded before recovery ends");
      const page = this.isOpen ? await this.worker.next(table) : null;
      if (page === null) return;
      yield page;
    }
  }

  /**
   * Ends recovery and commits its changes. From now on the index describes this run. Call before
   * the first block of the run is written: until then a crash leaves the index as the previous run
   * left it, so that the next start can recover again. Resolves to false if the commit failed; the
   * run then begins with the first commit that succeeds.
   */
  begin(): Promise<boolean> {
    this.#beginsAt ??= this.log.newest;
    return this.flush();
  }

  /**
   * Reports that the write with this sequence number failed, so that there will be no row for it.
   */
  skip(sequence: number): void {
    this.#sequences.add(sequence);
  }

  /**
   * Adds or replaces the row of a block. Its key is the digest, which depends on the namespace, and
   * the layer.
   */
  put(row: BlockRow): void {
    if (row.sequence > 0) this.#beginsAt ??= this.log.newest;
    if (this.#noteChange(this.log.put(row))) return;
    // If a row of this run is dropped, its sequence number is missing, which the next start
    // notices.
    if (row.sequence === 0) this.#isIncomplete = true;
  }

  remove(digest: Uint8Array, layer: number): void {
    this.#noteChange(this.log.remove(digest, layer));
  }

  /** Records the time of a block's latest use and its number of uses. */
  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): void {
    // Do not count a `touch` without room as dropped, because `flush` makes no promise about uses.
    if (this.log.touch(digest, layer, lastSeen, uses)) this.schedule(this.log.hasFull);
  }

  /**
   * Adds an alias of a block. Call after `put` of the block. The alias is removed together with the
   * block's row, and ignored if the block has none.
   */
  putAlias(row: AliasRow): void {
    this.#noteChange(this.log.putAlias(row));
  }

  /**
   * Commits all changes so far. Resolves to false if the commit failed or if changes were dropped
   * since the last `flush`.
   */
  flush(options: { readonly durable?: boolean } = {}): Promise<boolean> {
    const hasDropped = this.#dropped > this.#droppedAtFlush;
    this.#droppedAtFlush = this.#dropped;
    return new Promise((resolve) => {
      this.waiters.push({
        upTo: this.log.newest,
        durable: options.durable ?? false,
        resolve: (isCommitted) => resolve(isCommitted && !hasDropped),
      });
      void this.pump();
    });
  }

  /** Commits all changes, then marks the run as cleanly closed. */
  protected async finish(): Promise<boolean> {
    this.#beginsAt ??= this.log.newest;
    if (!(await this.flush()) || !this.isOpen) return false;
    const clean = this.#dropped === 0 && this.pending === 0;
    const progress = { ...this.#progress(this.committed), clean };
    const changes = { columns: null, count: 0, progress };
    const answer = await this.worker.ask({ kind: "commit", changes, durable: false });
    return answer.kind === "committed" && (await this.closeFile());
  }

  #noteChange(isTaken: boolean): boolean {
    if (isTaken) this.schedule(this.log.hasFull);
    else this.#dropped++;
    return isTaken;
  }

  protected newest(): number {
    return this.log.newest;
  }

  protected changesOf(chunk: ChangeChunk | null): IndexChanges {
    for (const sequence of chunk?.sequences ?? []) this.#sequences.add(sequence);
    const progress = this.#progress(this.through);
    return { columns: chunk?.batch.buffer ?? null, count: chunk?.count ?? 0, progress };
  }

  #progress(through: number): RunProgress {
    const complete = !this.#isIncomplete;
    if (this.#beginsAt === null || through < this.#beginsAt) {
      return { ...this.#inherited, clean: false, complete: this.#inherited.complete && complete };
    }
    const flushedSequence = this.#sequences.value;
    return { incarnation: this.#incarnation, flushedSequence, clean: false, complete };
  }

  protected onCommitted(columns: ArrayBuffer | null): void {
    if (columns !== null) this.log.recycle(columns);
  }

  protected override onReturned(columns: ArrayBuffer | null): void {
    if (columns !== null && this.inFlight !== null) this.inFlight.batch = new ChangeBatch(columns);
  }
}

/** The public methods of `SqliteIndex`. */
export type BlockIndex = Pick<SqliteIndex, keyof SqliteIndex>;

/**
 * Maximum number of sequence numbers above the watermark that are tracked. Some hundred blocks are
 * written at the same time; more numbers mean that one never arrives.
 */
const AHEAD_MAX = 65_536;

/**
 * The sequence number up to which the rows of all blocks were handed to the index. Writes end out
 * of order. If the watermark covered a block that is still being written, the next start would take
 * that block for a deleted one. If a number never arrives because its row was dropped, the
 * watermark stays below it.
 */
class SequenceWatermark {
  readonly #ahead = new Set<number>();
  #through = 0;
  #isFrozen = false;

  get value(): number {
    return this.#through;
  }

  add(sequence: number): void {
    if (this.#isFrozen || sequence <= this.#through) return;
    this.#ahead.add(sequence);
    while (this.#ahead.delete(this.#through + 1)) this.#through++;
    if (this.#ahead.size <= AHEAD_MAX) return;
    this.#isFrozen = true;
    this.#ahead.clear();
  }
}

export interface BlockIndexOptions {
  /** Folder of the index. Created if it does not exist. */
  readonly folder: string;
  /** Number that identifies this run of the agent. Never reused. */
  readonly incarnation: bigint;
  readonly owner: IndexOwner;
  readonly clock: Clock;
  /** Aborts the open if the disk hangs. */
  readonly signal?: AbortSignal;
  /**
   * Milliseconds for which another program may keep the index locked. After that the index is set
   * aside.
   */
  readonly busyMs?: number;
  /** Maximum number of changes not committed yet. Default: `PENDING_MAX`. */
  readonly pendingMax?: number;
}

/**
 * Opens or creates the index of a folder. Sets an unusable index aside (`state.setAside`) and
 * replaces it by an empty one. If the disk does not allow even that, the index is `failing`, keeps
 * changes pending and opens as soon as it can. In both cases `previous.incarnation` is null, and
 * the caller reads the headers of all blocks. Throws INDEX_IN_USE if another agent uses the index,
 * INDEX_FOREIGN if it belongs to another worker or machine, and ABORTED.
 */
export async function openBlockIndex(options: BlockIndexOptions): Promise<BlockIndex> {
  const { folder, incarnation, owner, clock, signal, pendingMax, busyMs = BUSY_MS } = options;
  const wallMs = clock.wallMs();
  const about = { folder, owner, incarnation, wallMs, busyMs, isLate: false };
  const openOrder: OpenOrder = { kind: "open", file: "index", ...about };
  const { worker, answer } = await IndexWorkerClient.open(openOrder, signal);
  return new SqliteIndex(worker, answer, { clock, openOrder, pendingMax });
}
