import { HearthError } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { benchSsdFiles, benchSsdSpeed, Fio, serveFilesBench } from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, toggle, withDefault } from "../flags.ts";
import { bytes, choice, integer, list, text } from "../kinds.ts";
import { printRecord, printRows, type Row } from "../output.ts";
import { createProgress } from "../progress.ts";

const KIB = 2 ** 10;
const MIB = 2 ** 20;
const GIB = 2 ** 30;
const METHODS = ["auto", "io_uring", "threads"] as const;

export const command = defineCommand({
  description: [
    "Writes and reads blocks as an agent does, checksums on: reserve, commit, the SSD tier's " +
      "writer; acquire, its reader. The same amount is written and read by fio in turn, in one " +
      "large file, with the same size and depth, on the same file system. It leaves nothing " +
      "behind.",
    "read_gbps, write_gbps: 10^9 bytes of payload a second, written to new files, as fio writes " +
      "a new file. overwrite_gbps: written into a tier that is full, as fio overwrites its file. " +
      "read_p50_ms, read_p99_ms: one block acquired at a time. The ratios are Hearth's figure " +
      "over fio's. Medians of the rounds.",
    "With --files it creates so many blocks in another process of its own, stops that, starts it " +
      "again, kills it at work and starts it once more. last_over_first: the rate of the last " +
      "tenth over that of the first. open_ready_s: from the start of the process until it has " +
      "recovered. lookup_p99_us: the key of one block, and whether it is there. rss_mb: memory " +
      "of the process when it is ready.",
  ],
  arguments: {},
  flags: {
    dir: optional(text("DIR"), "a folder on the drive to measure; by default TMPDIR or /var/tmp"),
    blockBytes: withDefault(
      list(bytes({ min: 4 * KIB, max: 64 * MIB })),
      [256 * KIB, MIB, 4 * MIB],
      "lengths of a block",
    ),
    bytes: withDefault(bytes({ min: MIB }), GIB, "written by each side in each round"),
    depth: withDefault(
      integer({ min: 1, max: 1024 }),
      64,
      "operations under way at once, on both sides",
    ),
    rounds: withDefault(integer({ min: 1, max: 1000 }), 5, "passes over each figure"),
    method: withDefault(choice(METHODS), "auto", "what moves the bytes"),
    withoutFio: toggle("do not compare with fio"),
    files: optional(
      integer({ min: 160, max: 2 ** 26 }),
      "measure so many files instead of speed; wants one --block-bytes",
    ),
    serve: optional(text("FOLDER"), "be the other process (started by the benchmark itself)"),
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
    const { depth, method, files, rounds, json } = flags;
    const [blockBytes] = flags.blockBytes as [number];
    if (flags.serve !== null) {
      const blocksMax = files ?? 0;
      const { serve: folder } = flags;
      await serveFilesBench(native, { folder, blockBytes, blocksMax, depth, method, signal });
      return "ok";
    }
    const dir = flags.dir ?? process.env.TMPDIR ?? "/var/tmp";
    const progress = createProgress({ io, clock, json: flags.json });
    const onProgress = (what: string) => progress.update(what);
    const common = { dir, depth, method, signal, onProgress };
    if (files !== null) {
      if (flags.blockBytes.length > 1) {
        throw new HearthError("USAGE", "--files wants one --block-bytes");
      }
      const result = await benchSsdFiles({ ...common, files, blockBytes });
      progress.end();
      printRecord(io, { ...result }, json);
      return "ok";
    }
    const fio = flags.withoutFio ? null : Fio.find();
    const rows: Row[] = [];
    for (const size of flags.blockBytes) {
      const own = { blockBytes: size, bytes: flags.bytes, rounds, fio };
      rows.push({ ...(await benchSsdSpeed(native, { ...common, ...own })) });
    }
    progress.end();
    printRows(io, rows, json);
    if (fio !== null || flags.withoutFio) return "ok";
    io.err.write(
      "fio is not installed, so there is nothing to compare with: apt-get install fio\n",
    );
    return "hostCannot";
  },
});
