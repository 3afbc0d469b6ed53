import {
  booleanKind,
  choiceKind,
  durationKind,
  gibKind,
  integerKind,
  orOff,
  pagesKind,
  ratioKind,
  sizeKind,
} from "../kinds.ts";
import { type KeySpec, section, withDefault } from "../spec.ts";
import { ssdKeys } from "./kv-ssd.ts";

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
