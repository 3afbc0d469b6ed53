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

/** Maximum number of pending changes: about 70 MB with their keys. */
const PENDING_MAX = 262_144;

/**
 * Rows of blocks as columns, of which `count` entries are filled. All rows have the same namespace
 * and layer.
 */
export interface BlockRows {
  readonly count: number;
  readonly namespaceKey: Uint8Array;
  /**
   * Identifier of the namespace's MAC key, 16 bytes. Null: no block of the namespace was stored
   * with one.
   */
  readonly macKeyId: Uint8Array | null;
  readonly layer: number;
  /** 32 bytes per row. */
  readonly digests: Uint8Array;
  /** 32 bytes per row. All zero: no parent. */
  readonly parents: Uint8Array;
  readonly bytes: Uint32Array;
  /** XXH3-64 of the payload. */
  readonly checksums: BigUint64Array;
  /** Distinguishes several files with the same short name. Usually 0. */
  readonly variants: Uint8Array;
  /** Time of the latest use, in seconds since 1970, and number of uses (saturates at 65,535). */
  readonly lastSeen: Uint32Array;
  readonly uses: Uint16Array;
}

/** One block on SSD. */
export interface BlockRow {
  readonly namespaceKey: Uint8Array;
  /** See `BlockRows`. The index keeps the latest value per namespace. */
  readonly macKeyId?: Uint8Array | null;
  readonly layer: number;
  readonly digest: Uint8Array;
  /** Null: no parent. */
  readonly parent: Uint8Array | null;
  readonly bytes: number;
  readonly checksum: bigint;
  readonly variant: number;
  readonly lastSeen: number;
  readonly uses: number;
  /**
   * Sequence number within this run of the agent, from 1, unique per block. 0: the block was found
   * by recovery.
   */
  readonly sequence: number;
}

export interface AliasRow {
  readonly namespaceKey: Uint8Array;
  readonly layer: number;
  readonly digest: Uint8Array;
  /** 8 bytes: an engine hash, little-endian. 32 bytes: a SHA-256 page key. */
  readonly alias: Uint8Array;
}

/** State of the previous run. */
export interface PreviousRun {
  /**
   * Null: the index is new, or no run has used it. Recovery then reads the headers of all blocks.
   */
  readonly incarnation: bigint | null;
  /** The rows of all blocks up to this sequence number were committed or removed. */
  readonly flushedSequence: number;
  /** Whether the run closed the index after all changes were committed. */
  readonly clean: boolean;
}

export interface IndexState {
  /** Reason why the index currently fails. Null: it works. */
  readonly failing: string | null;
  /** Changes not committed yet, and changes dropped because too many were pending. */
  readonly pending: number;
  readonly dropped: number;
  readonly rows: number;
  /** Path and reason of an unusable index that was set aside at this start. */
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
  /** Progress to write during recovery, taken from the previous run. */
  readonly #inherited: RunProgress;
  #dropped = 0;
  #droppedAtFlush = 0;
  /**
   * The row of a block found by recovery was dropped: the next start must read all headers again.
   */
  #isIncomplete = false;
  /** The chunk that begins the run. Null before `begin`. */
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
   * Every row as it was when the index was opened, by namespace and layer, oldest use first. Call
   * it once, before `begin`. All rows were verified: an index with a damaged row is set aside.
   * Throws INDEX_FAILED if reading fails midway.
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
   * Ends recovery and commits its changes. From now on the index describes this run. Call it before
   * the first block of the run is written: until then a crash leaves the index as the previous run
   * left it, so that the next start can recover again. False as in `flush`; the run then begins
   * with the first commit that succeeds.
   */
  begin(): Promise<boolean> {
    this.#beginsAt ??= this.log.newest;
    return this.flush();
  }

  /** Reports that the write with this sequence number failed, so that no row will come. */
  skip(sequence: number): void {
    this.#sequences.add(sequence);
  }

  /**
   * Adds or replaces the row of a block. The key is digest (which covers the namespace) and layer.
   */
  put(row: BlockRow): void {
    if (row.sequence > 0) this.#beginsAt ??= this.log.newest;
    if (this.#noteChange(this.log.put(row))) return;
    // A dropped row of this run leaves a gap in the sequence numbers, which the next start notices.
    if (row.sequence === 0) this.#isIncomplete = true;
  }

  remove(digest: Uint8Array, layer: number): void {
    this.#noteChange(this.log.remove(digest, layer));
  }

  /** Records a use of the block. */
  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): void {
    // A `touch` without room is not counted as dropped, because `flush` makes no promise about
    // uses.
    if (this.log.touch(digest, layer, lastSeen, uses)) this.schedule(this.log.hasFull);
  }

  /**
   * Adds an alias. Call it after the `put` of its block. The alias is removed together with the row
   * of its block, and ignored if there is none.
   */
  putAlias(row: AliasRow): void {
    this.#noteChange(this.log.putAlias(row));
  }

  /** Commits all changes so far. False if the commit failed or if changes were dropped. */
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

  /** Commits everything, then marks the run as clean. */
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
 * Maximum number of sequence numbers that are out of order. Some hundred blocks are in flight at
 * once; more means that one of them never comes.
 */
const AHEAD_MAX = 65_536;

/**
 * The highest sequence number up to which every block's row was handed over. Writes end out of
 * order, and a claim about a block that is still being written would make the next start take it
 * for a deleted one. If a sequence number never comes, because its row was dropped, the watermark
 * stays below it.
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
  /** Created if it does not exist. */
  readonly folder: string;
  /** Identifies this run of the agent. Never reused. */
  readonly incarnation: bigint;
  readonly owner: IndexOwner;
  readonly clock: Clock;
  /** Aborts waiting for a disk that hangs. */
  readonly signal?: AbortSignal;
  /** Time for which another program may keep the index locked before it is set aside. */
  readonly busyMs?: number;
  /** Maximum number of pending changes. */
  readonly pendingMax?: number;
}

/**
 * Opens or creates the index of a folder. An unusable index is set aside (`state.setAside`) and
 * replaced by an empty one. If the disk does not allow even that, the index is `failing`, keeps
 * changes pending and opens as soon as it can. In both cases `previous.incarnation` is null and the
 * caller reads the headers of all blocks. Throws INDEX_IN_USE if another agent uses the index,
 * INDEX_FOREIGN if it belongs to another worker or machine, ABORTED.
 */
export async function openBlockIndex(options: BlockIndexOptions): Promise<BlockIndex> {
  const { folder, incarnation, owner, clock, signal, pendingMax, busyMs = BUSY_MS } = options;
  const wallMs = clock.wallMs();
  const about = { folder, owner, incarnation, wallMs, busyMs, isLate: false };
  const openOrder: OpenOrder = { kind: "open", file: "index", ...about };
  const { worker, answer } = await IndexWorkerClient.open(openOrder, signal);
  return new SqliteIndex(worker, answer, { clock, openOrder, pendingMax });
}
