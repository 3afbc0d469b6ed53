import { join } from "node:path";
import {
  booleanKind,
  choiceKind,
  durationKind,
  gibKind,
  integerKind,
  numberKind,
  orOff,
  pathKind,
  sizeKind,
} from "../../core/index.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";

const KIB = 2 ** 10;

const MIB = 2 ** 20;

const RAM_LIMITS = { min: MIB, max: 64 * 2 ** 40 };

const BLOCKS_MAX_LIMITS = { min: 64, max: 2 ** 28 };

/** Average block size for which the table is dimensioned: one layer of a small block. */
const BLOCK_BYTES_EXPECTED = 32 * 1024;

/** Average size of blocks on SSD, which are larger because each costs a file. */
const SSD_BLOCK_BYTES_EXPECTED = 256 * 1024;

const BLOCKS_DERIVED_MIN = 65_536;

/** Inputs of the default of `blocks_max`, in bytes and blocks. */
export interface TableNeeds {
  readonly ramBytes: number;
  /** Null: no SSD tier. */
  readonly ssdBytes: number | null;
}

/** Maximum blocks of GPU memory that the agent mirrors, for all engines together. */
const GPU_WINDOW_BLOCKS_MAX = 262_144;

/** Blocks of GPU memory to mirror: at most half of the table. */
export function deriveGpuWindowBlocks(blocksMax: number): number {
  return Math.min(GPU_WINDOW_BLOCKS_MAX, Math.floor(blocksMax / 2));
}

/** Table entries for both tiers full of small blocks, plus the GPU mirror. */
export function deriveBlocksMax({ ramBytes, ssdBytes }: TableNeeds): number {
  const ramBlocks = Math.ceil(ramBytes / BLOCK_BYTES_EXPECTED);
  const ssdBlocks = Math.ceil((ssdBytes ?? 0) / SSD_BLOCK_BYTES_EXPECTED);
  const blocks = ramBlocks + ssdBlocks + GPU_WINDOW_BLOCKS_MAX;
  return Math.min(BLOCKS_MAX_LIMITS.max, Math.max(BLOCKS_DERIVED_MIN, blocks));
}

const ramBytes: KeySpec<number> = {
  key: "ram_gib",
  kind: gibKind(RAM_LIMITS),
  defaultValue: { is: "required" },
  doc:
    "Memory for blocks in GiB. Fractions are allowed and rounded down to whole 4 KiB pages. The " +
    "agent keeps this memory for its lifetime: leave room for the engine's own pinned memory. A " +
    "value above the machine's memory or the control group's limit is refused.",
  example: 8,
};

const blocksMax: KeySpec<number> = {
  key: "blocks_max",
  kind: integerKind(BLOCKS_MAX_LIMITS),
  defaultValue: {
    is: "derived",
    words:
      "one for each 32 KiB of RAM and each 256 KiB of SSD, plus 262144 for the mirror of GPU " +
      "memory; at least 65536",
    needs: ["kv.ram_gib", "kv.ssd_gib"],
    from: ({ value }) =>
      deriveBlocksMax({ ramBytes: value("kv.ram_gib"), ssdBytes: value("kv.ssd_gib") }),
  },
  doc:
    "Maximum blocks in the table, for all tiers together. Each entry needs up to 220 bytes of " +
    "memory outside the RAM tier. If the table is full, blocks are evicted. Raise the limit for " +
    "blocks smaller than 32 KiB, lower it for an SSD full of large blocks.",
  example: 4_000_000,
};

const policy = withDefault({
  key: "policy",
  kind: choiceKind(["hearth", "lru"]),
  defaultValue: "hearth",
  doc:
    "Eviction policy of RAM; leaves are evicted before their parents. `hearth`: evict the " +
    "blocks that are least likely to be reused, estimated from past requests. `lru`: evict the " +
    "least recently used blocks.",
});

const GIB = 2 ** 30;

const MINUTE_MS = 60_000;

const DAY_MS = 24 * 60 * MINUTE_MS;

const SSD_LIMITS = { min: MIB, max: 2 ** 50 };

/** PATH_MAX minus the longest name inside the folder and the NUL. */
const FOLDER_BYTES_MAX = 4000;

export const SSD_DIR_EXAMPLE = "/var/cache/hearth";

const ssdBytes: KeySpec<number | null> = {
  key: "ssd_gib",
  kind: gibKind(SSD_LIMITS) as KeySpec<number | null>["kind"],
  defaultValue: { is: "unset" },
  doc:
    "Hard limit of the space of block files on the SSD, in GiB as the file system counts it. " +
    "Required with `ssd_dir`. Leave a tenth of the file system free, because full drives are " +
    "slow.",
  example: 500,
};

const indexDir: KeySpec<string | null> = {
  key: "index_dir",
  kind: pathKind({ bytesMax: FOLDER_BYTES_MAX, example: `${SSD_DIR_EXAMPLE}/index` }),
  defaultValue: {
    is: "derived",
    words: "`index` in `ssd_dir`",
    needs: ["kv.ssd_dir"],
    from({ value }) {
      const dir = value<string | null>("kv.ssd_dir");
      return dir === null ? null : join(dir, "index");
    },
  },
  doc:
    "The folder for the index of the SSD tier. It may be on another drive. If the index is " +
    "lost, the agent rebuilds it from the block files, which makes the start slower.",
  example: `${SSD_DIR_EXAMPLE}/index`,
};

/** Keys of [kv] about the SSD tier. */
const ssdKeys = {
  ssdDir: optional({
    key: "ssd_dir",
    kind: pathKind({ bytesMax: FOLDER_BYTES_MAX, example: SSD_DIR_EXAMPLE }),
    doc:
      "The folder for blocks on SSD, preferably on its own NVMe file system (ext4 or XFS). One " +
      "agent at a time uses it. If unset, there is no SSD tier. Under systemd, a folder other " +
      "than the example needs a ReadWritePaths= line.",
    example: SSD_DIR_EXAMPLE,
  }),
  ssdBytes,
  ssdTtlMs: withDefault({
    key: "ssd_ttl",
    kind: orOff(durationKind({ min: 1_000, max: 3_650 * DAY_MS, example: "7d" })),
    defaultValue: "7d",
    reload: true,
    doc:
      "Time after which an unused block is removed from SSD, even if there is room. `off`: blocks " +
      "are removed only to make room.",
  }),
  indexDir,
  writePolicy: withDefault({
    key: "write_policy",
    kind: choiceKind(["write_through", "write_through_selective", "write_back"]),
    defaultValue: "write_through",
    reload: true,
    doc:
      "When a block is written to SSD. `write_through`: soon after the engine commits it. " +
      "`write_through_selective`: at its second request, which reduces drive wear. `write_back`: " +
      "when it is evicted from RAM, so that a crash loses the contents of RAM.",
  }),
  ssdIo: withDefault({
    key: "ssd_io",
    kind: choiceKind(["auto", "io_uring", "threads"]),
    defaultValue: "auto",
    doc:
      "I/O method between RAM and SSD. `auto`: io_uring if the kernel allows it, else threads. " +
      "`io_uring` refuses to start if the kernel denies it.",
  }),
  ssdWriteQueueBytes: withDefault({
    key: "ssd_write_queue",
    kind: sizeKind({ min: MIB, max: 64 * GIB, example: "256MiB" }),
    defaultValue: "256MiB",
    doc:
      "Maximum bytes of blocks that wait in RAM for their write to SSD. At the limit new blocks " +
      "stay in RAM only. Raise it for bursts, together with the RAM.",
  }),
  scrubBytesPerSecond: withDefault({
    key: "scrub_rate",
    kind: orOff(sizeKind({ min: 4 * KIB, max: 64 * GIB, example: "16MiB" })),
    defaultValue: "16MiB",
    reload: true,
    doc:
      "Bytes per second to verify in the background in RAM, and as many on SSD, to find damage " +
      "before an engine reads it. `off`: only reads verify checksums.",
  }),
};

export const kvSection = section("The tiers that hold blocks.", {
  ramBytes,
  policy,
  highWater: withDefault({
    key: "high_water",
    kind: numberKind({ min: 0.05, max: 1 }, "ratio"),
    defaultValue: 0.95,
    reload: true,
    doc:
      "Share of RAM in use above which background eviction starts; it stops 0.05 below. Lower it if " +
      "engines receive `full` during bursts of writes.",
  }),
  lockMemory: withDefault({
    key: "lock_memory",
    kind: choiceKind(["try", "require", "off"]),
    defaultValue: "try",
    doc:
      "Whether block memory is locked into RAM so that it is never swapped. `try` continues " +
      "unlocked with a warning, `require` refuses to start if the limit (LimitMEMLOCK, ulimit -l) " +
      "is too low, `off` does not lock.",
  }),
  hugePages: withDefault({
    key: "huge_pages",
    kind: choiceKind(["try", "require", "off"]),
    defaultValue: "try",
    doc:
      "Whether block memory uses huge pages, from the reserved pool or transparent. `try` falls " +
      "back to 4 KiB pages, `require` refuses to start without huge pages. `hearth doctor` " +
      "reports what the host offers.",
  }),
  ramHandover: withDefault({
    key: "ram_handover",
    kind: booleanKind,
    defaultValue: true,
    doc:
      "Whether blocks in RAM survive a planned restart (stop, upgrade) under systemd. The memory " +
      "stays in the file descriptor store of systemd (FileDescriptorStoreMax=). The next agent " +
      "takes all of it, or drops all of it if anything does not match.",
  }),
  mirrorPulls: withDefault({
    key: "mirror_pulls",
    kind: booleanKind,
    defaultValue: true,
    reload: true,
    doc:
      "Whether a block that an engine fetched from another host stays in RAM on this host, like a " +
      "block that a local engine wrote. Off: the block is dropped when the engine releases it. " +
      "See [peers].",
  }),
  blocksMax,
  ...ssdKeys,
});
