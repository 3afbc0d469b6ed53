import { mkdtempSync, rmSync, statfsSync } from "node:fs";
import { join } from "node:path";
import {
  assert,
  DIGEST_BYTES,
  formatBytes,
  HearthError,
  LAYER_ALL,
  messageOf,
  type NamespaceIndex,
  systemClock,
  systemRandom,
  type WorkerId,
} from "../../../core/index.ts";
import { namespaceKey } from "../../../identity/index.ts";
import {
  type BlockDisk,
  type Native,
  openDisk,
  type Queue,
  type Region,
} from "../../../native/index.ts";
import { Tier } from "../../../store/blocks/index.ts";
import { type BlockIndex, openBlockIndex } from "../../../store/index/index.ts";
import {
  type AddressBatch,
  BlockOutcome,
  createAddressBatch,
  createHandleBatch,
  type EngineSession,
  type HandleBatch,
  Namespaces,
  type TieredStore,
} from "../../../store/index.ts";
import {
  type ClaimedFolder,
  claimFolder,
  INDEX_FOLDER,
  readMachineId,
} from "../../../store/kvb/index.ts";
import { BENCH_MANIFEST, createBenchStore } from "../bench-store.ts";

export type DiskMethod = "auto" | "io_uring" | "threads";

export interface BenchTierOptions {
  readonly folder: string;
  readonly blockBytes: number;
  /** Number of blocks that the block table must hold. */
  readonly blocksMax: number;
  /** Maximum number of concurrent operations on the disk. */
  readonly depth: number;
  readonly method: DiskMethod;
  readonly native: Native;
}

/** Number of blocks of one chain. Each commit writes one chain, as a prompt does. */
export const CHAIN_BLOCKS = 16;
const SLICE_BYTES = 2 ** 26;
const ARENA_BYTES_MIN = 2 ** 24;
const CAPACITY_BYTES = 2 ** 50;
/** Deadline in milliseconds. No read must time out, because the benchmark measures read times. */
const READ_DEADLINE_MS = 3_600_000;
const CLOSE_MS = 60_000;
const PAGE = 4096;

/** The block store of an agent with an SSD tier, without the rest of the agent. */
export class BenchTier {
  readonly native: Native;
  readonly blockBytes: number;
  readonly store: TieredStore;
  readonly disk: BlockDisk;
  readonly holder: EngineSession;
  readonly namespaceKey: Uint8Array;
  /**
   * Result of recovery: number of recovered blocks, and number of files that were adopted because
   * their index row was lost.
   */
  readonly found: { readonly blocks: number; readonly adopted: number };
  /** Maximum number of blocks waiting for SSD, so that the disk always has a next one. */
  readonly queueBlocksMax: number;
  readonly #folder: ClaimedFolder;
  readonly #index: BlockIndex;
  readonly #queue: Queue;
  readonly #region: Region;

  private constructor(
    options: BenchTierOptions,
    parts: ReturnType<typeof createStore>,
    cold: { folder: ClaimedFolder; index: BlockIndex; disk: BlockDisk },
    found: { blocks: number; adopted: number },
    namespaces: Namespaces,
  ) {
    this.native = options.native;
    this.blockBytes = options.blockBytes;
    this.store = parts.store;
    this.#queue = parts.queue;
    this.#region = parts.region;
    this.disk = cold.disk;
    this.#folder = cold.folder;
    this.#index = cold.index;
    this.found = found;
    this.queueBlocksMax = queueBlocks(options.depth);
    this.namespaceKey = namespaceKey(options.native, BENCH_MANIFEST);
    const namespace = namespaces.indexOf(this.namespaceKey) as NamespaceIndex;
    this.holder = parts.store.openEngineSession({ namespace, handlesMax: 2 ** 20 });
  }

  /** Opens the tier. Throws the errors with which an agent's start would fail. */
  static async open(options: BenchTierOptions): Promise<BenchTier> {
    const { native, folder: dir, depth, method } = options;
    const parts = createStore(options);
    await parts.grow();
    const incarnation = (BigInt(systemRandom.u32()) << 32n) | BigInt(systemRandom.u32());
    const clock = systemClock;
    const machine = readMachineId();
    const folder = claimFolder({ native, dir, worker: "bench" as WorkerId, machine, clock });
    const { worker, created } = folder.owner;
    const owner = { worker, machine: machine ?? "", store: String(created) };
    const [index, disk] = await Promise.all([
      openBlockIndex({ folder: join(dir, INDEX_FOLDER), incarnation, owner, clock }),
      openDisk(native, { folder: dir, arena: parts.region, depth, method, clock }),
    ]);
    const namespaces = new Namespaces();
    const found = await parts.store.openSsd({
      disk,
      index,
      namespaces,
      incarnation,
      ttlMs: null,
      writePolicy: "write_through",
      scrubBytesPerS: 0,
      capacityBytes: CAPACITY_BYTES,
      writeQueueBytes: CAPACITY_BYTES,
      readDeadlineMs: READ_DEADLINE_MS,
      health: { raise: () => undefined, clear: () => undefined },
      log: () => undefined,
    });
    return new BenchTier(options, parts, { folder, index, disk }, found, namespaces);
  }

  /** Removes everything from RAM, so that the next read comes from SSD. */
  emptyRam(): void {
    while (this.store.ram.dropOne() === "dropped");
    assert(this.store.table.residentBlocks(Tier.ram) === 0, "all of RAM is on SSD");
  }

  /**
   * Limits the tier to `blocks` blocks, as if it were full: each new block then evicts the oldest.
   */
  holdOnly(blocks: number): void {
    const { room } = this.store.ssd!;
    room.setCapacity((blocks + this.queueBlocksMax) * room.allocatedOf(this.blockBytes));
  }

  /**
   * Stops as an agent does: afterwards all blocks and index rows are on SSD and the folder is
   * unlocked.
   */
  async stop(): Promise<void> {
    this.holder.abandon();
    this.holder.buried();
    await this.store.ssd!.persist();
    await this.close();
  }

  /** Closes at once, without waiting for writes. */
  async close(): Promise<void> {
    await this.store[Symbol.asyncDispose]();
    await this.#index.close(CLOSE_MS);
    this.#folder[Symbol.dispose]();
    await this.#queue[Symbol.asyncDispose]();
    this.#region[Symbol.dispose]();
  }
}

function queueBlocks(depth: number): number {
  return 2 * depth;
}

/** Creates a store whose RAM holds the write queue, the current chain and some evictable blocks. */
function createStore({ native, blockBytes, blocksMax, depth }: BenchTierOptions) {
  const slots = queueBlocks(depth) + 4 * CHAIN_BLOCKS;
  const bytes = Math.max(ARENA_BYTES_MIN, slots * Math.ceil(blockBytes / PAGE) * PAGE);
  const parts = createBenchStore({
    ...{ native, bytes, threads: 2, watches: 8, blocksMax },
    marks: { high: 1, low: 1 },
  });
  const grow = async () => {
    await parts.grow();
    // Fill the arena with incompressible bytes, like an engine's blocks.
    for (let at = 0; at < bytes; at += SLICE_BYTES) {
      parts.region.fill(at, Math.min(SLICE_BYTES, bytes - at), BigInt(systemRandom.u32()));
    }
  };
  return { ...parts, grow };
}

/** Options of an acquire that never times out. */
const PATIENT = { tiers: 0, deadlineMs: 3_600_000, stopAtMiss: false };

/**
 * Blocks by number, in chains of `CHAIN_BLOCKS`. They are written and read as an engine's frames
 * would do it: reserve, commit, the tier's writer, acquire, and the tier's reader. No bytes are
 * copied to or from the slots, because an engine's copies are not measured here.
 */
export class BenchBlocks {
  readonly #tier: BenchTier;
  readonly #batch = createAddressBatch(CHAIN_BLOCKS);
  readonly #handles = createHandleBatch(CHAIN_BLOCKS);
  readonly #signal: AbortSignal;

  constructor(tier: BenchTier, signal: AbortSignal) {
    this.#tier = tier;
    this.#signal = signal;
  }

  /** Sets the addresses, keys included, of blocks [first, first + count) of one chain. */
  name(batch: AddressBatch, first: number, count: number): void {
    const { native, namespaceKey, blockBytes, store } = this.#tier;
    const ids = new BigUint64Array(count);
    for (let i = 0; i < count; i++) ids[i] = BigInt(first + i);
    native.chainDigests(namespaceKey, new Uint8Array(ids.buffer), 8, batch.digests);
    batch.count = count;
    batch.layer = LAYER_ALL;
    batch.bytes.fill(blockBytes, 0, count);
    batch.parents.fill(0, 0, DIGEST_BYTES);
    batch.parents.set(batch.digests.subarray(0, (count - 1) * DIGEST_BYTES), DIGEST_BYTES);
    store.deriveKeys(batch, true);
  }

  /** Writes whole chains; resolves when all are on SSD. Calls `onChain` after each commit. */
  async write(first: number, count: number, onChain = () => {}): Promise<void> {
    assert(
      first % CHAIN_BLOCKS === 0 && count % CHAIN_BLOCKS === 0,
      "only whole chains are written",
    );
    const { store, queueBlocksMax } = this.#tier;
    const { writer } = store.ssd!;
    const written = store.ssdStats.writtenBlocks;
    for (let at = first; at < first + count; at += CHAIN_BLOCKS) {
      while (writer.queuedBlocks > queueBlocksMax) await writer.oneSettled();
      this.#signal.throwIfAborted();
      await this.#writeChain(at);
      onChain();
    }
    await writer.settled();
    const lost = count - (store.ssdStats.writtenBlocks - written);
    if (lost > 0) throw failed(`${lost} of ${count} blocks were not written to SSD`);
  }

  async #writeChain(first: number): Promise<void> {
    const { holder } = this.#tier;
    const handles = this.#handles;
    this.name(this.#batch, first, CHAIN_BLOCKS);
    holder.reserve(this.#batch, handles);
    mustBeOk(handles, "has no room in RAM");
    handles.flags.fill(0);
    await holder.commit(handles);
    mustBeOk(handles, "was not committed");
  }

  /** Reads these blocks, `atOnce` at a time. Returns the nanoseconds of each read. */
  async read(numbers: readonly number[], atOnce: number): Promise<number[]> {
    const { holder, store } = this.#tier;
    const before = store.ssdStats.readBlocks;
    const taken: number[] = [];
    let next = 0;
    const reader = async () => {
      const batch = createAddressBatch(1);
      const handles = createHandleBatch(1);
      while (next < numbers.length) {
        this.#signal.throwIfAborted();
        this.name(batch, numbers[next++], 1);
        const start = Bun.nanoseconds();
        const got = (await holder.acquire(batch, PATIENT, handles)) ?? handles;
        taken.push(Bun.nanoseconds() - start);
        mustBeOk(got, "was not read from SSD");
        holder.release(got);
      }
    };
    await Promise.all(Array.from({ length: atOnce }, reader));
    const fromSsd = store.ssdStats.readBlocks - before;
    if (fromSsd !== numbers.length)
      throw failed(`${numbers.length - fromSsd} reads did not reach the SSD`);
    return taken;
  }
}

function mustBeOk(handles: HandleBatch, what: string): void {
  for (let i = 0; i < handles.count; i++) {
    if (handles.outcome[i] !== BlockOutcome.ok) throw failed(`a block ${what}`);
  }
}

function failed(text: string): HearthError {
  const fix = "look at the kernel log for this drive, and whether its file system is full";
  return new HearthError("SSD_UNAVAILABLE", text, { fix });
}

/** Bytes that must stay free on the file system, because a full one is slower. */
const SPARE_BYTES = 2 ** 28;

/**
 * A folder of the benchmark's own inside `dir`, gone with everything in it when disposed.
 * Throws SSD_UNAVAILABLE if the folder cannot be created, or its file system has less free space
 * than `bytes`.
 */
export function makeBenchFolder(dir: string, bytes: number) {
  let path: string;
  try {
    const { bavail, bsize } = statfsSync(dir);
    const free = bavail * bsize;
    if (free < bytes + SPARE_BYTES) {
      const text = `${dir} has ${formatBytes(free)} free, this takes ${formatBytes(bytes)}`;
      const fix = "give --dir a folder with more room, or measure less";
      throw new HearthError("SSD_UNAVAILABLE", text, { fix });
    }
    path = mkdtempSync(join(dir, "hearth-bench-"));
  } catch (thrown) {
    if (thrown instanceof HearthError) throw thrown;
    throw new HearthError("SSD_UNAVAILABLE", `${dir} cannot be used: ${messageOf(thrown)}`, {
      cause: thrown,
      fix: "give --dir a folder that is there and yours",
    });
  }
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) };
}
