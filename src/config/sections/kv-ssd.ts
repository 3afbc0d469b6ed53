import { join } from "node:path";
import {
  choiceKind,
  durationKind,
  gibKind,
  integerKind,
  orOff,
  pagesKind,
  pathKind,
  sizeKind,
} from "../kinds.ts";
import { type KeySpec, optional, withDefault } from "../spec.ts";

const KIB = 2 ** 10;
const MIB = 2 ** 20;
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
export const ssdKeys = {
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
