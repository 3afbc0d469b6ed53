import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import {
  choiceKind,
  HearthError,
  integerKind,
  listKind,
  sizeKind,
  textKind,
} from "../../core/index.ts";
import { compiled, loadNative } from "../../native/index.ts";
import {
  benchEngine,
  benchHash,
  benchIndex,
  benchPythonClient,
  benchSsdFiles,
  benchSsdSpeed,
  Fio,
  serveEngineBench,
  serveFilesBench,
  startBenchServer,
} from "../../workload/bench/index.ts";
import {
  defineCommand,
  fileKind,
  folderKind,
  jsonFlag,
  optional,
  toggle,
  withDefault,
} from "../command.ts";
import { printMeasured, printRecord } from "../terminal.ts";

const MIB = 2 ** 20;

export const benchEngineCommand = defineCommand({
  description: [
    "Measures the engine plane between two processes: this process is the client, a child " +
      "process is the agent. Each rate is printed next to its limit, measured in the same run: a " +
      "bare echo over a socket, and a copy between private buffers.",
    "echo_rtt_us: 64 bytes there and back. acquire_1m_p50_us: acquire and release of one " +
      "block. acquire_64_*: of 64 blocks in one call. memcpy_gbps: private copy. copy_out_gbps: " +
      "acquire, copy, release. copy_out_verified_gbps: with the checksum of the copy. put_gbps: " +
      "reserve, copy with checksum, commit verified by the agent. ops_per_s: acquires of one " +
      "block, 32 under way. With --mac also copy_out_mac_gbps and put_mac_gbps: each copy with " +
      "its MAC; mac_ratio: the first over copy_out_verified_gbps. Medians.",
    "--client python measures the Python client instead, each rate next to its reference in the " +
      "same run: put and verified get of one large call against the TypeScript client, and 64 " +
      "blocks of 64 KiB in one call against a pipeline of SET and MGET of Redis over a Unix " +
      "socket with hiredis. A ratio is Python divided by its reference. Redis is skipped with a " +
      "message if redis-server or its Python client is not available.",
  ],
  arguments: {},
  flags: {
    blockBytes: withDefault(sizeKind({ min: 4096, max: 16 * MIB }), MIB, "length of a block"),
    rounds: withDefault(integerKind({ min: 1, max: 1000 }), 15, "passes over each rate"),
    samples: withDefault(
      integerKind({ min: 10, max: 1_000_000 }),
      3000,
      "round trips of each latency",
    ),
    mac: toggle("also measure a namespace with a key: each copy is verified by its MAC"),
    client: withDefault(choiceKind(["typescript", "python"]), "typescript", "client to measure"),
    python: optional(fileKind, "an interpreter with redis and hiredis; by default made once"),
    driver: optional(folderKind, "the folder of hearth_bench; defaults to the checkout's"),
    serve: optional(textKind("FOLDER"), "run as the child process (used by the benchmark)"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench engine", what: "blocks of 1 MiB" },
    { words: "bench engine --json", what: "the same as one line of JSON" },
    { words: "bench engine --block-bytes 64KiB", what: "small blocks" },
    { words: "bench engine --mac --json", what: "with and without MACs" },
    { words: "bench engine --client python --json", what: "the Python client and Redis" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const native = loadNative();
    const { blockBytes, samples, rounds } = flags;
    if (flags.serve !== null) {
      await serveEngineBench(native, { folder: flags.serve, blockBytes, signal: interrupt() });
      return "ok";
    }
    const signal = interrupt();
    const folder = mkdtempSync(join(tmpdir(), "hearth-bench-"));
    const common = { blockBytes, rounds, signal };
    const measure =
      flags.client === "typescript"
        ? async (onProgress: (what: string) => void) => {
            await using server = await startBenchServer({ folder, ...common });
            const own = { ...server.paths, samples, mac: flags.mac, onProgress };
            return benchEngine(native, { ...common, ...own });
          }
        : (onProgress: (what: string) => void) =>
            benchPythonClient(native, {
              ...{ ...common, folder, python: flags.python, onProgress },
              packages: flags.driver ?? packagesOfCheckout(),
              onSkip: (why) => io.err.write(`skipped: Redis: ${why}\n`),
            });
    try {
      await printMeasured({ flags, io, clock }, measure);
      return "ok";
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
});

/**
 * Returns the folder of the Python packages in a checkout. The executable, which `./dev build` puts
 * into a checkout, does not contain Python files.
 */
function packagesOfCheckout(): string {
  const root = compiled ? join(dirname(process.execPath), "..") : join(import.meta.dir, "../../..");
  const packages = join(root, "python");
  if (existsSync(join(packages, "hearth_bench"))) return packages;
  throw new HearthError("USAGE", `${packages} has no hearth_bench`, {
    fix: "give --driver the folder python/ of a checkout",
  });
}

export const benchHashCommand = defineCommand({
  description: [
    "Times the digests of all blocks of one prompt, made in one pass, against one plain " +
      "BLAKE3 over the same bytes in the same run. Figures are medians.",
    "blake3_gbps: plain BLAKE3, GB/s on one core. prompt_15k_us: all digests of the prompt, in " +
      "microseconds. blocks: how many digests that are. plain_us: the plain hash. ratio: the " +
      "first divided by the second.",
  ],
  arguments: {},
  flags: {
    runs: withDefault(
      integerKind({ min: 1, max: 100_000 }),
      1_000,
      "measurements of each of the two",
    ),
    json: jsonFlag,
  },
  examples: [
    { words: "bench hash", what: "a prompt of 15,000 tokens in blocks of 64" },
    { words: "bench hash --json", what: "the same as one line of JSON" },
  ],
  exits: ["hostCannot"],
  async run({ flags, io }) {
    printRecord(io, benchHash(loadNative(), flags), flags.json);
    return "ok";
  },
});

export const benchIndexCommand = defineCommand({
  description: [
    "Fills a block table with chains of blocks that share prefixes and measures it on one core, " +
      "without engine and payload. Memory is the growth of the process.",
    "bytes_per_block: table, indexes, aliases and slots. match_64_p50_us: one lookup of 64 " +
      "keys, all present. insert_per_s: a block reserved, named and committed. churn_per_s: the " +
      "same with an eviction before each. evict_per_s: evictions alone.",
  ],
  arguments: {},
  flags: {
    blocks: withDefault(
      integerKind({ min: 1_000, max: 2 ** 26 }),
      1_000_000,
      "blocks in the table",
    ),
    seed: withDefault(integerKind({ min: 0, max: 2 ** 32 - 1 }), 1, "of the random keys"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench index", what: "a table of a million blocks, about 0.5 GB of memory" },
    { words: "bench index --blocks 100000 --json", what: "a smaller one, as JSON" },
  ],
  exits: [],
  async run({ flags, io }) {
    printRecord(io, benchIndex(flags), flags.json);
    return "ok";
  },
});

const KIB = 2 ** 10;
const GIB = 2 ** 30;
const METHODS = ["auto", "io_uring", "threads"] as const;

export const benchSsdCommand = defineCommand({
  description: [
    "Writes and reads blocks as an agent does, checksums on: reserve, commit, the SSD tier's " +
      "writer; acquire, its reader. fio alternately writes and reads the same amount, in one " +
      "large file, with the same size and depth, on the same file system. All files are removed " +
      "at the end.",
    "read_gbps, write_gbps: 10^9 bytes of payload a second, written to new files, like fio. " +
      "overwrite_gbps: written into a full tier, as fio overwrites its file. read_p50_ms, " +
      "read_p99_ms: one block acquired at a time. The ratios are Hearth's figure divided by " +
      "fio's. Medians of the rounds.",
    "With --files a child process creates this many blocks, is stopped, started again, " +
      "killed under load and started once more. last_over_first: the rate of the last tenth " +
      "divided by the rate of the first. open_ready_s: from the start of the process until it " +
      "has recovered. lookup_p99_us: the key of one block, and whether it is there. rss_mb: " +
      "memory of the process when it is ready.",
  ],
  arguments: {},
  flags: {
    dir: optional(folderKind, "a folder on the drive to measure; by default TMPDIR or /var/tmp"),
    blockBytes: withDefault(
      listKind(sizeKind({ min: 4 * KIB, max: 64 * MIB })),
      [256 * KIB, MIB, 4 * MIB],
      "lengths of a block",
    ),
    bytes: withDefault(sizeKind({ min: MIB }), GIB, "written by each side in each round"),
    depth: withDefault(
      integerKind({ min: 1, max: 1024 }),
      64,
      "operations under way at once, on both sides",
    ),
    rounds: withDefault(integerKind({ min: 1, max: 1000 }), 5, "passes over each figure"),
    method: withDefault(choiceKind(METHODS), "auto", "I/O method"),
    withoutFio: toggle("do not compare with fio"),
    files: optional(
      integerKind({ min: 160, max: 2 ** 26 }),
      "measure this many files instead of speed; needs one --block-bytes",
    ),
    serve: optional(textKind("FOLDER"), "run as the child process (used by the benchmark)"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench ssd --dir /mnt/nvme", what: "three sizes of blocks, beside fio" },
    { words: "bench ssd --block-bytes 1MiB --depth 32 --json", what: "one size, as JSON" },
    { words: "bench ssd --files 200000 --block-bytes 64KiB", what: "many files: 14 GB" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const native = loadNative();
    const signal = interrupt();
    const { depth, method, files, rounds } = flags;
    const [blockBytes] = flags.blockBytes as [number];
    if (flags.serve !== null) {
      const blocksMax = files ?? 0;
      const { serve: folder } = flags;
      await serveFilesBench(native, { folder, blockBytes, blocksMax, depth, method, signal });
      return "ok";
    }
    const dir = flags.dir ?? process.env.TMPDIR ?? "/var/tmp";
    const common = { dir, depth, method, signal };
    if (files !== null) {
      if (flags.blockBytes.length > 1) {
        throw new HearthError("USAGE", "--files needs one --block-bytes");
      }
      await printMeasured({ flags, io, clock }, (onProgress) =>
        benchSsdFiles({ ...common, files, blockBytes, onProgress }),
      );
      return "ok";
    }
    const fio = flags.withoutFio ? null : Fio.find();
    const own = { ...common, bytes: flags.bytes, rounds, fio };
    await printMeasured({ flags, io, clock }, (onProgress) =>
      Array.fromAsync(flags.blockBytes, (size) =>
        benchSsdSpeed(native, { ...own, blockBytes: size, onProgress }),
      ),
    );
    if (fio !== null || flags.withoutFio) return "ok";
    io.err.write(
      "fio is not installed, so there is nothing to compare with: apt-get install fio\n",
    );
    return "hostCannot";
  },
});
