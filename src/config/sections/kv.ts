import { join } from "node:path";
import {
  booleanKind,
  choiceKind,
  durationKind,
  gibKind,
  integerKind,
  orOff,
  pagesKind,
  pathKind,
  ratioKind,
  sizeKind,
} from "../kinds.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";

const KIB = 2 ** 10;

const MIB = 2 ** 20;

const RAM_LIMITS = { min: MIB, max: 64 * 2 ** 40 };

const BLOCKS_MAX_LIMITS = { min: 64, max: 2 ** 28 };

/** The table is sized for blocks of this many bytes on average: one layer of a small block. */
const BLOCK_BYTES_EXPECTED = 32 * 1024;

/** Blocks on SSD are expected twice as large: each costs a file. */
const SSD_BLOCK_BYTES_EXPECTED = 256 * 1024;

const BLOCKS_DERIVED_MIN = 65_536;

/** What `blocks_max` is worked out from; bytes, and blocks. */
export interface TableNeeds {
  readonly ramBytes: number;
  /** Null: no SSD tier. */
  readonly ssdBytes: number | null;
  readonly gpuWindowBlocks: number;
}

/** Entries for both tiers full of small blocks and for the mirror of the GPU beside them. */
export function deriveBlocksMax({ ramBytes, ssdBytes, gpuWindowBlocks }: TableNeeds): number {
  const ramBlocks = Math.ceil(ramBytes / BLOCK_BYTES_EXPECTED);
  const ssdBlocks = Math.ceil((ssdBytes ?? 0) / SSD_BLOCK_BYTES_EXPECTED);
  const blocks = ramBlocks + ssdBlocks + gpuWindowBlocks;
  return Math.min(BLOCKS_MAX_LIMITS.max, Math.max(BLOCKS_DERIVED_MIN, blocks));
}

const ramBytes: KeySpec<number> = {
  key: "ram_gib",
  kind: gibKind({ ...RAM_LIMITS, twin: "kv.ram" }),
  standard: { is: "required" },
  reload: false,
  doc:
    "Memory for blocks, in GiB; fractions are allowed and are rounded down to whole 4 KiB " +
    "pages. It is taken from the machine for good: leave room for the engine's own pinned " +
    "memory. A value above the machine's memory or the control group's limit is refused.",
  example: 8,
  also: {
    key: "ram",
    kind: pagesKind({ ...RAM_LIMITS, example: "64GiB" }),
    doc: "The same as `ram_gib`, written as a size with its unit. A file sets one of the two.",
    example: "8GiB",
  },
};

const blocksMax: KeySpec<number> = {
  key: "blocks_max",
  kind: integerKind(BLOCKS_MAX_LIMITS),
  standard: {
    is: "derived",
    words:
      "one for each 32 KiB of RAM and each 256 KiB of SSD plus `engine.gpu_window_blocks`, at " +
      "least 65536",
    needs: ["kv.ram_gib", "kv.ssd_gib", "engine.gpu_window_blocks"],
    from: ({ value }) =>
      deriveBlocksMax({
        ramBytes: value("kv.ram_gib"),
        ssdBytes: value("kv.ssd_gib"),
        gpuWindowBlocks: value("engine.gpu_window_blocks"),
      }),
  },
  reload: false,
  doc:
    "How many blocks the table can know, all tiers together. Each entry costs up to 220 bytes " +
    "of memory beside the RAM tier. When the table is full, blocks are evicted as if memory " +
    "were. Raise it for blocks smaller than 32 KiB, lower it for an SSD full of large ones.",
  example: 4_000_000,
};

const policy = withDefault({
  key: "policy",
  kind: choiceKind(["hearth", "lru"]),
  standard: "hearth",
  reload: false,
  doc:
    "Which blocks leave RAM first, leaves before parents. `hearth`: those least likely to be " +
    "asked for again, by how requests came back so far. `lru`: the least recently used.",
});

const highWater = withDefault({
  key: "high_water",
  kind: ratioKind({ min: 0.05, max: 1 }),
  standard: 0.95,
  reload: true,
  doc:
    "Share of RAM in use above which the background walk begins to evict. Lower it when engines " +
    "see `full` during bursts of writes.",
});

const lowWater = withDefault({
  key: "low_water",
  kind: ratioKind({ min: 0, max: 0.99 }),
  standard: 0.9,
  reload: true,
  doc:
    "Share of RAM in use down to which the walk evicts. It must be below `high_water`; the room " +
    "between the two is what writers find free at once.",
});

const evictIntervalMs = withDefault({
  key: "evict_interval",
  kind: durationKind({ min: 10, max: 1_000, example: "1s" }),
  standard: "1s",
  reload: true,
  doc:
    "How often the background walk looks, at the least. Pressure wakes it earlier, so shorter " +
    "times rarely help.",
});

const lockMemory = withDefault({
  key: "lock_memory",
  kind: choiceKind(["try", "require", "off"]),
  standard: "try",
  reload: false,
  doc:
    "Whether block memory is locked so that it never goes to swap. `try` goes on unlocked with " +
    "a warning, `require` refuses the start where the limit (LimitMEMLOCK, ulimit -l) is too " +
    "low, `off` does not ask.",
});

const hugePages = withDefault({
  key: "huge_pages",
  kind: choiceKind(["try", "require", "off"]),
  standard: "try",
  reload: false,
  doc:
    "Whether block memory uses huge pages, from the reserved pool or transparent ones. `try` " +
    "falls back to 4 KiB pages, `require` refuses the start without them. `hearth doctor` says " +
    "what the host offers.",
});

const prefaultSliceBytes = withDefault({
  key: "prefault_slice",
  kind: sizeKind({ min: 4096, max: 2 ** 30, multiple: 4096, example: "64MiB" }),
  standard: "64MiB",
  reload: false,
  doc:
    "How much memory is touched at a time while the arena grows to its size after the start. " +
    "The agent serves meanwhile; a smaller slice makes it smoother, a larger one ready sooner.",
});

const ramHandover = withDefault({
  key: "ram_handover",
  kind: booleanKind,
  standard: true,
  reload: false,
  doc:
    "Whether blocks in RAM survive a planned restart (stop, upgrade) under systemd: the memory " +
    "waits in its file descriptor store (FileDescriptorStoreMax=) and is taken over whole, or " +
    "dropped whole where anything does not fit.",
});

const mirrorPulls = withDefault({
  key: "mirror_pulls",
  kind: booleanKind,
  standard: true,
  reload: true,
  doc:
    "Whether a block that an engine got from another host stays in RAM here, like one that an " +
    "engine on this host wrote. Off: it goes as soon as the engine has released it. See [peers].",
});

const ramScrubBytesPerSecond = withDefault({
  key: "ram_scrub_rate",
  kind: orOff(sizeKind({ min: 4096, max: 64 * 2 ** 30, example: "16MiB" })),
  standard: "16MiB",
  reload: true,
  doc:
    "How many bytes a second of the blocks in RAM are hashed in the background to find damaged " +
    "memory before an engine does. `off`: checksums are verified by readers alone.",
});

const GIB = 2 ** 30;

const MINUTE_MS = 60_000;

const DAY_MS = 24 * 60 * MINUTE_MS;

const SSD_LIMITS = { min: MIB, max: 2 ** 50 };

/** PATH_MAX less the longest name below the folder and its NUL. */
const FOLDER_BYTES_MAX = 4000;

export const SSD_DIR_EXAMPLE = "/var/cache/hearth";

const ssdDir = optional({
  key: "ssd_dir",
  kind: pathKind({ bytesMax: FOLDER_BYTES_MAX, example: SSD_DIR_EXAMPLE }),
  reload: false,
  doc:
    "The folder for blocks on SSD, best on an NVMe file system of its own (ext4 or XFS). One " +
    "agent at a time uses it. Without it there is no SSD tier. Under systemd, a folder other " +
    "than the example needs a ReadWritePaths= line.",
  example: SSD_DIR_EXAMPLE,
});

const ssdBytes: KeySpec<number | null> = {
  key: "ssd_gib",
  kind: gibKind({ ...SSD_LIMITS, twin: "kv.ssd" }) as KeySpec<number | null>["kind"],
  standard: { is: "unset" },
  reload: false,
  doc:
    "The most that block files may take on the SSD, in GiB as the file system counts them; a " +
    "hard cap. Must be set with `ssd_dir`. Leave a tenth of the file system free: drives slow " +
    "down when full.",
  example: 500,
  also: {
    key: "ssd",
    kind: pagesKind({ ...SSD_LIMITS, example: "500GiB" }) as KeySpec<number | null>["kind"],
    doc: "The same as `ssd_gib`, written as a size with its unit. A file sets one of the two.",
    example: "500GiB",
  },
};

const ssdTtlMs = withDefault({
  key: "ssd_ttl",
  kind: orOff(durationKind({ min: 1_000, max: 3_650 * DAY_MS, example: "7d" })),
  standard: "7d",
  reload: true,
  doc:
    "How long a block may lie on SSD without being used before it is removed, however much room " +
    "there is. `off`: only for want of room.",
});

const indexDir: KeySpec<string | null> = {
  key: "index_dir",
  kind: pathKind({ bytesMax: FOLDER_BYTES_MAX, example: `${SSD_DIR_EXAMPLE}/index` }),
  standard: {
    is: "derived",
    words: "`index` in `ssd_dir`",
    needs: ["kv.ssd_dir"],
    from({ value }) {
      const dir = value<string | null>("kv.ssd_dir");
      return dir === null ? null : join(dir, "index");
    },
  },
  reload: false,
  doc:
    "The folder for the index of what lies on SSD. Put it on another drive where that one is " +
    "safer or faster: when lost, it is rebuilt from the block files, which takes longer.",
  example: `${SSD_DIR_EXAMPLE}/index`,
};

const writePolicy = withDefault({
  key: "write_policy",
  kind: choiceKind(["write_through", "write_through_selective", "write_back"]),
  standard: "write_through",
  reload: true,
  doc:
    "When a block is written to SSD. `write_through`: soon after the engine has committed it. " +
    "`write_through_selective`: when it is asked for a second time, which spares the drive. " +
    "`write_back`: when it leaves RAM, so that a kill loses what RAM held.",
});

const ssdIo = withDefault({
  key: "ssd_io",
  kind: choiceKind(["auto", "io_uring", "threads"]),
  standard: "auto",
  reload: false,
  doc:
    "What moves blocks between RAM and SSD. `auto`: io_uring where the kernel allows it, else " +
    "threads. `io_uring` refuses the start where it is denied.",
});

const ssdDepth = withDefault({
  key: "ssd_depth",
  kind: integerKind({ min: 1, max: 1024 }),
  standard: 64,
  reload: false,
  doc:
    "How many operations on the SSD may be in flight. More helps drives that want deep queues " +
    "and makes a single read wait longer.",
});

const ssdWriteQueueBytes = withDefault({
  key: "ssd_write_queue",
  kind: sizeKind({ min: MIB, max: 64 * GIB, example: "256MiB" }),
  standard: "256MiB",
  reload: false,
  doc:
    "How many bytes of blocks may wait in RAM to be written to SSD. Beyond it new blocks stay in " +
    "RAM alone. Raise it for bursts, with RAM to match.",
});

const ssdReadDeadlineMs: KeySpec<number> = {
  key: "ssd_read_deadline",
  kind: durationKind({ min: 1, max: MINUTE_MS, example: "2s" }),
  standard: {
    is: "derived",
    words: "that of `engine.acquire_deadline`",
    needs: ["engine.acquire_deadline"],
    from: ({ value }) => value("engine.acquire_deadline"),
  },
  reload: true,
  doc:
    "How long a read from SSD may take before the block counts as a miss. Shorter than " +
    "computing the block anew, or the wait gains nothing.",
  example: "2s",
};

const scrubBytesPerSecond = withDefault({
  key: "scrub_rate",
  kind: orOff(sizeKind({ min: 4 * KIB, max: 64 * GIB, example: "16MiB" })),
  standard: "16MiB",
  reload: true,
  doc:
    "How many bytes a second are read back from SSD in the background to find damage before an " +
    "engine does. `off`: checksums are verified on reads alone.",
});

/** The keys of [kv] that are about the SSD tier. */
const ssdKeys = {
  ssdDir,
  ssdBytes,
  ssdTtlMs,
  indexDir,
  writePolicy,
  ssdIo,
  ssdDepth,
  ssdWriteQueueBytes,
  ssdReadDeadlineMs,
  scrubBytesPerSecond,
};

export const kvSection = section("The tiers that hold blocks.", {
  ramBytes,
  policy,
  highWater,
  lowWater,
  evictIntervalMs,
  lockMemory,
  hugePages,
  prefaultSliceBytes,
  ramHandover,
  mirrorPulls,
  ramScrubBytesPerSecond,
  blocksMax,
  ...ssdKeys,
});
