import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { HearthError } from "../../core/index.ts";
import { compiled, loadNative } from "../../native/index.ts";
import {
  benchEngine,
  benchPythonClient,
  serveEngineBench,
  startBenchServer,
} from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, toggle, withDefault } from "../flags.ts";
import { bytes, choice, integer, text } from "../kinds.ts";
import { printRecord } from "../output.ts";
import { createProgress } from "../progress.ts";

const MIB = 2 ** 20;

export const command = defineCommand({
  description: [
    "Measures the engine plane between two processes: this one is the client, another one of " +
      "its own is the agent. Each rate stands beside what limits it, taken in the same run: a " +
      "bare echo over a socket, and a copy between private buffers.",
    "echo_rtt_us: 64 bytes there and back. acquire_1m_p50_us: acquire and release of one " +
      "block. acquire_64_*: of 64 blocks in one call. memcpy_gbps: private copy. copy_out_gbps: " +
      "acquire, copy, release. copy_out_verified_gbps: with the checksum of the copy. put_gbps: " +
      "reserve, copy with checksum, commit verified by the agent. ops_per_s: acquires of one " +
      "block, 32 under way. With --mac also copy_out_mac_gbps and put_mac_gbps: each copy with " +
      "its MAC; mac_ratio: the first over copy_out_verified_gbps. Medians.",
    "--client python measures the Python client instead, each rate beside its rival in the same " +
      "run: put and verified get of one large call against the TypeScript client, and 64 blocks " +
      "of 64 KiB in one call against a pipeline of SET and MGET of Redis over a Unix socket with " +
      "hiredis. A ratio is Python over its rival. Redis is left out, with a line that says why, " +
      "if redis-server or its Python client cannot be had.",
  ],
  arguments: {},
  flags: {
    blockBytes: withDefault(bytes({ min: 4096, max: 16 * MIB }), MIB, "length of a block"),
    rounds: withDefault(integer({ min: 1, max: 1000 }), 15, "passes over each rate"),
    samples: withDefault(integer({ min: 10, max: 1_000_000 }), 3000, "round trips of each latency"),
    mac: toggle("also measure a namespace with a key: each copy is verified by its MAC"),
    client: withDefault(choice(["typescript", "python"]), "typescript", "whose speed to measure"),
    python: optional(text("FILE"), "an interpreter with redis and hiredis; by default made once"),
    driver: optional(text("DIR"), "the folder of hearth_bench; by default that of the checkout"),
    serve: optional(text("FOLDER"), "be the other process (started by the benchmark itself)"),
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
    const progress = createProgress({ io, clock, json: flags.json });
    const folder = mkdtempSync(join(tmpdir(), "hearth-bench-"));
    try {
      if (flags.client === "python") {
        const result = await benchPythonClient(native, {
          folder,
          blockBytes,
          rounds,
          python: flags.python,
          packages: flags.driver ?? packagesOfCheckout(),
          signal,
          onProgress: (what) => progress.update(what),
          onSkip: (why) => io.err.write(`skipped: Redis: ${why}\n`),
        });
        progress.end();
        printRecord(io, { ...result }, flags.json);
        return "ok";
      }
      await using server = await startBenchServer({ folder, blockBytes, signal });
      const result = await benchEngine(native, {
        ...server.paths,
        blockBytes,
        samples,
        rounds,
        mac: flags.mac,
        onProgress: (what) => progress.update(what),
      });
      progress.end();
      printRecord(io, { ...result }, flags.json);
      return "ok";
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
});

/** Python files are no part of the executable; `./dev build` puts it into a checkout. */
function packagesOfCheckout(): string {
  const root = compiled ? join(dirname(process.execPath), "..") : join(import.meta.dir, "../../..");
  const packages = join(root, "python");
  if (existsSync(join(packages, "hearth_bench"))) return packages;
  throw new HearthError("USAGE", `no hearth_bench in ${packages}`, {
    fix: "give --driver the folder python/ of a checkout",
  });
}
