import { assert, formatBytes, HearthError } from "../core/index.ts";
import { type Native, NativeError, type Queue, Region, type Wish } from "../native/index.ts";

export interface ArenaOptions {
  readonly bytes: number;
  readonly hugePages: Wish;
  readonly lockMemory: Wish;
  /**
   * Bytes populated by one native call. The agent already serves from the populated part between
   * calls.
   */
  readonly sliceBytes: number;
}

const PAGE = 4096;
const HUGE_PAGE = 2 * 1024 * 1024;

/**
 * Creates the memory of the RAM tier without populating it. Throws ARENA_UNAVAILABLE, which names
 * the limit to raise.
 */
export function createArena(native: Native, options: ArenaOptions): Region {
  // Round down to whole huge pages if huge pages are required; otherwise to normal pages.
  const unit = options.hugePages === "require" ? HUGE_PAGE : PAGE;
  const bytes = Math.floor(options.bytes / unit) * unit || PAGE;
  try {
    return Region.create(native, {
      bytes,
      hugePages: options.hugePages,
      lockMemory: options.lockMemory,
    });
  } catch (error) {
    throw unavailable(error, options, bytes);
  }
}

function unavailable(error: unknown, options: ArenaOptions, bytes: number): unknown {
  if (!(error instanceof NativeError)) return error;
  const fix =
    options.hugePages === "require"
      ? 'raise vm.nr_hugepages, or set kv.huge_pages to "try"'
      : "lower kv.ram_gib, or raise the memory limit of the service";
  const text = `the RAM arena of ${formatBytes(bytes)} cannot be allocated (${error.status})`;
  return new HearthError("ARENA_UNAVAILABLE", text, { cause: error, fix });
}

/**
 * Populates an arena in slices on a native thread, because one GiB takes about a second. Calls
 * `onReady` after each slice. Ends when the arena is fully populated or the host has no more
 * memory.
 */
export class ArenaGrowth {
  readonly #region: Region;
  readonly #queue: Queue;
  readonly #options: ArenaOptions;
  readonly #onReady: (bytes: number) => void;
  #ready = 0;
  #stopped = false;

  constructor(
    region: Region,
    queue: Queue,
    options: ArenaOptions,
    onReady: (bytes: number) => void,
  ) {
    assert(options.sliceBytes % PAGE === 0, "a slice is whole pages");
    this.#region = region;
    this.#queue = queue;
    this.#options = options;
    this.#onReady = onReady;
  }

  /** Bytes populated so far, counted from the start of the arena. */
  get readyBytes(): number {
    return this.#ready;
  }

  get complete(): boolean {
    return this.#ready === this.#region.bytes;
  }

  /**
   * Populates the first slice, without which the RAM tier cannot start. Throws ARENA_UNAVAILABLE if
   * the host lacks the memory.
   */
  async first(): Promise<void> {
    await this.#grow();
  }

  /**
   * Populates the remaining slices. If a slice fails, stops and calls `onShort` instead of
   * throwing: the agent serves from the populated part.
   */
  async rest(onShort: (error: HearthError) => void): Promise<void> {
    try {
      while (!this.#stopped && !this.complete) await this.#grow();
    } catch (error) {
      if (!(error instanceof HearthError)) throw error;
      onShort(error);
    }
  }

  /**
   * Marks the whole arena as populated. Call if the memory was taken over from a previous process.
   */
  wasThere(): void {
    this.#ready = this.#region.bytes;
    this.#onReady(this.#ready);
  }

  /** Stops populating after the slice in progress. */
  stop(): void {
    this.#stopped = true;
  }

  async #grow(): Promise<void> {
    const bytes = Math.min(this.#options.sliceBytes, this.#region.bytes - this.#ready);
    const done = await this.#queue.populate(this.#region, this.#ready, bytes);
    if (!done.ok) {
      if (done.status === "closed") return this.stop();
      throw this.#short(done.status, done.errno);
    }
    this.#ready += bytes;
    this.#onReady(this.#ready);
  }

  #short(status: string, errno: number): HearthError {
    const have = formatBytes(this.#ready);
    const want = formatBytes(this.#region.bytes);
    const locking = this.#options.lockMemory === "require";
    const fix = locking
      ? 'raise LimitMEMLOCK to infinity, or set kv.lock_memory to "try"'
      : "lower kv.ram_gib, or raise the memory limit of the service";
    const reason = `${status.replaceAll("_", " ")}, errno ${errno}`;
    const text = `the RAM arena got ${have} of ${want} (${reason})`;
    return new HearthError("ARENA_UNAVAILABLE", text, { fix });
  }
}

/** A part of the arena whose memory comes from one NUMA node. */
export interface ArenaPart {
  readonly offset: number;
  readonly bytes: number;
  readonly node: number;
}

/** Alignment of the parts of a large arena: 1 GiB, as for the slices that devices register. */
const UNIT_BYTES = 2 ** 30;
const HUGE_PAGE_BYTES = 2 * 2 ** 20;
/** Maximum number of parts: the maximum number of zones of a slot allocator. */
const PARTS_MAX = 8;

/**
 * Returns equal parts of the arena, one for each NUMA node that has a device. `nodes` has one entry
 * per device; null if the device's node is unknown. Returns no parts if the host has one node with
 * memory, or if no device reports its node.
 */
export function planArenaParts(
  arenaBytes: number,
  nodes: readonly (number | null)[],
  hostNodes: number,
): readonly ArenaPart[] {
  assert(arenaBytes > 0, "an arena has bytes");
  const near = [...new Set(nodes)].filter((node) => node !== null).sort((a, b) => a - b);
  if (hostNodes < 2 || near.length === 0 || near.length > PARTS_MAX) return [];
  const unit = arenaBytes >= near.length * UNIT_BYTES ? UNIT_BYTES : HUGE_PAGE_BYTES;
  if (arenaBytes < near.length * unit) return [];
  const ends = near.map((_, i) => Math.round((arenaBytes * (i + 1)) / near.length / unit) * unit);
  ends[near.length - 1] = arenaBytes;
  return near.map((node, i) => {
    const offset = ends[i - 1] ?? 0;
    return { offset, bytes: ends[i] - offset, node };
  });
}
