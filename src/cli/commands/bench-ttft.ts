import { join } from "node:path";
import { HearthError } from "../../core/index.ts";
import { compiled, loadNative } from "../../native/index.ts";
import {
  benchTtft,
  TTFT_COMPUTES,
  TTFT_PROMPTS,
  TTFT_SHAPES,
  type TtftShape,
} from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, toggle, withDefault } from "../flags.ts";
import { choice, integer, list, text } from "../kinds.ts";
import { printRows } from "../output.ts";
import { createProgress } from "../progress.ts";

const SHAPE_NAMES = Object.keys(TTFT_SHAPES) as [TtftShape, ...TtftShape[]];

export const command = defineCommand({
  description: [
    "Time to the first token: of a prompt that is computed as a whole, and of one whose keys and " +
      "values come back from an agent of the benchmark's own, layer by layer into a paged cache " +
      "on the GPU while the layers before are computed; then only the last tokens are. A Python " +
      "process with PyTorch is the engine, with a transformer of these shapes and random weights.",
    "prefill_ms: all tokens computed. ram_ms: restored from RAM, computed_tokens computed. " +
      "ratio: the one over the other. ram_gbps: 10^9 bytes a second from the first request to " +
      "the last layer. bare_gbps: a plain copy of pinned memory, in the same run. identical: the " +
      "logits are those of the cache that never left the GPU, bit by bit. ssd_: the same after a " +
      "restart of the agent, so that SSD alone has them. Medians of the rounds. pageable: " +
      "copies that blocked a thread of the agent. stand_in: the " +
      "driver's library is the tests' own, and the times say nothing of a GPU.",
  ],
  arguments: {},
  flags: {
    shapes: withDefault(choice(SHAPE_NAMES), "qwen3-14b", "of the transformer"),
    prompts: withDefault(list(integer({ min: 1, max: 2 ** 20 })), TTFT_PROMPTS, "tokens of each"),
    rounds: withDefault(integer({ min: 1, max: 1000 }), 3, "measurements of each time"),
    device: withDefault(text("NAME"), "cuda:0", "of PyTorch; cpu with a --library for tests"),
    compute: withDefault(choice(TTFT_COMPUTES), "torch", "hash: hashes, without PyTorch"),
    blockTokens: withDefault(integer({ min: 1, max: 4096 }), 128, "tokens in a block"),
    connections: withDefault(integer({ min: 1, max: 16 }), 2, "that load layers in turn"),
    dir: optional(text("DIR"), "a folder on the drive to measure; by default TMPDIR or /var/tmp"),
    withoutSsd: toggle("do not measure from SSD"),
    python: withDefault(text("FILE"), "python3", "an interpreter that has PyTorch"),
    driver: optional(text("DIR"), "the folder of hearth_bench, where this is no checkout"),
    library: optional(text("FILE"), "the driver's library; libcuda.so.1 by default"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench ttft --dir /mnt/nvme", what: "five prompts on the first GPU" },
    { words: "bench ttft --prompts 15002 --without-ssd --json", what: "the longest, from RAM" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { json, shapes, blockTokens, withoutSsd, dir, ...own } = flags;
    const progress = createProgress({ io, clock, json });
    const rows = await benchTtft(loadNative(), {
      ...own,
      driver: own.driver ?? packagesOfCheckout(),
      shape: TTFT_SHAPES[shapes],
      block_tokens: blockTokens,
      ssdDir: withoutSsd ? null : (dir ?? process.env.TMPDIR ?? "/var/tmp"),
      signal: interrupt(),
      onProgress: (what) => progress.update(what),
    });
    progress.end();
    printRows(
      io,
      rows.map(({ ram, ssd, ...row }) => ({
        prompt_tokens: row.promptTokens,
        computed_tokens: row.promptTokens - row.restoredTokens,
        mib: row.bytes / 2 ** 20,
        prefill_ms: row.prefillMs,
        ram_ms: ram.ms,
        ram_ratio: ram.ratio,
        ram_gbps: ram.gbps,
        bare_gbps: row.bareGbps,
        ram_identical: ram.identical,
        ssd_ms: ssd?.ms ?? null,
        ssd_ratio: ssd?.ratio ?? null,
        ssd_gbps: ssd?.gbps ?? null,
        ssd_identical: ssd?.identical ?? null,
        pageable: row.pageable,
        stand_in: row.isStandIn,
      })),
      json,
    );
    return "ok";
  },
});

/** Python files are no part of the executable. */
function packagesOfCheckout(): string {
  if (!compiled) return join(import.meta.dir, "../../../python");
  throw new HearthError("USAGE", "--driver is wanted: the folder python/ of a checkout");
}
