import { join } from "node:path";
import { choiceKind, HearthError, integerKind, listKind, sizeKind } from "../../core/index.ts";
import { compiled, loadNative } from "../../native/index.ts";
import {
  benchGpu,
  benchTtft,
  TTFT_COMPUTES,
  TTFT_PROMPTS,
  TTFT_SHAPES,
  type TtftShape,
} from "../../workload/bench/index.ts";
import {
  defineCommand,
  fileKind,
  folderKind,
  jsonFlag,
  nameKind,
  optional,
  toggle,
  withDefault,
} from "../command.ts";
import { printMeasured } from "../terminal.ts";

const MIB = 2 ** 20;
/** Bytes of the largest pieces that the benchmark copies. */
const UNIT = 16 * MIB;

export const benchGpuCommand = defineCommand({
  description: [
    "Copies an arena like an agent's to GPU memory and back, in jobs of 64 MiB as engines " +
      "request them, and compares every byte. In the same rounds a plain loop over the driver " +
      "copies pinned memory of its own.",
    "h2d is to the GPU, d2h from it; 10^9 bytes a second, medians of the rounds. h2d_gbps: " +
      "pieces of 16 MiB. h2d_1mib_gbps: of 1 MiB. scatter_gbps, gather_gbps: of 64 KiB, to the " +
      "GPU and from it; no two pieces are adjacent on both sides. bare_h2d_gbps: the plain loop, " +
      "16 MiB a call. bare_64kib_h2d_gbps: the same, 64 KiB a call. NAME_of_bare: over the plain " +
      "loop of 16 MiB. pageable: copies that blocked a thread. wrong: round trips with a wrong " +
      "byte. stand_in: the library is a test double, and the rates are meaningless.",
  ],
  arguments: {},
  flags: {
    bytes: withDefault(sizeKind({ min: UNIT }), 512 * MIB, "copied each way by each measurement"),
    rounds: withDefault(integerKind({ min: 1, max: 10_000 }), 9, "measurements of each rate"),
    device: withDefault(
      integerKind({ min: 0, max: 63 }),
      0,
      "which GPU, counted as the driver does",
    ),
    library: optional(fileKind, "the driver's library; libcuda.so.1 by default"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench gpu", what: "the first GPU" },
    { words: "bench gpu --device 1 --json", what: "the second, as one line of JSON" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run(context) {
    const { json: _, ...own } = context.flags;
    if (own.bytes % UNIT !== 0)
      throw new HearthError("USAGE", "--bytes must be a multiple of 16MiB");
    await printMeasured(context, (onProgress) =>
      benchGpu(loadNative(), { ...own, signal: context.interrupt(), onProgress }),
    );
    return "ok";
  },
});

const SHAPE_NAMES = Object.keys(TTFT_SHAPES) as [TtftShape, ...TtftShape[]];

export const benchTtftCommand = defineCommand({
  description: [
    "Measures the time to first token of a prompt that is computed as a whole, and of one whose " +
      "KV is restored from a temporary agent: layer by layer into a paged cache on the GPU while " +
      "earlier layers are computed, so that only the last tokens are computed. A Python process " +
      "with PyTorch is the engine, with a transformer of these shapes and random weights.",
    "prefill_ms: all tokens computed. ram_ms: restored from RAM, computed_tokens computed. " +
      "ratio: the first divided by the second. ram_gbps: 10^9 bytes a second from the first " +
      "request to the last layer. bare_gbps: a plain copy of pinned memory, in the same run. " +
      "identical: the logits are those of the cache that never left the GPU, bit by bit. ssd_: " +
      "the same after a restart of the agent, so that SSD alone has them. Medians of the rounds. " +
      "pageable: copies that blocked a thread of the agent. stand_in: the driver's library is a " +
      "test double, and the times are meaningless.",
  ],
  arguments: {},
  flags: {
    shapes: withDefault(choiceKind(SHAPE_NAMES), "qwen3-14b", "of the transformer"),
    prompts: withDefault(
      listKind(integerKind({ min: 1, max: 2 ** 20 })),
      TTFT_PROMPTS,
      "tokens of each",
    ),
    rounds: withDefault(integerKind({ min: 1, max: 1000 }), 3, "measurements of each time"),
    device: withDefault(nameKind, "cuda:0", "of PyTorch; cpu with a --library for tests"),
    compute: withDefault(choiceKind(TTFT_COMPUTES), "torch", "hash: hashes, without PyTorch"),
    blockTokens: withDefault(integerKind({ min: 1, max: 4096 }), 128, "tokens in a block"),
    connections: withDefault(integerKind({ min: 1, max: 16 }), 2, "that load layers in turn"),
    dir: optional(folderKind, "a folder on the drive to measure; by default TMPDIR or /var/tmp"),
    withoutSsd: toggle("do not measure from SSD"),
    python: withDefault(fileKind, "python3", "an interpreter that has PyTorch"),
    driver: optional(folderKind, "the folder of hearth_bench, if this is not a checkout"),
    library: optional(fileKind, "the driver's library; libcuda.so.1 by default"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench ttft --dir /mnt/nvme", what: "five prompts on the first GPU" },
    { words: "bench ttft --prompts 15002 --without-ssd --json", what: "the longest, from RAM" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run(context) {
    const { json: _, shapes, blockTokens, withoutSsd, dir, ...own } = context.flags;
    await printMeasured(context, (onProgress) =>
      benchTtft(loadNative(), {
        ...own,
        driver: own.driver ?? packagesOfCheckout(),
        shape: TTFT_SHAPES[shapes],
        block_tokens: blockTokens,
        ssdDir: withoutSsd ? null : (dir ?? process.env.TMPDIR ?? "/var/tmp"),
        signal: context.interrupt(),
        onProgress,
      }),
    );
    return "ok";
  },
});

/**
 * Returns the folder of the Python packages in a checkout. The executable does not contain Python
 * files.
 */
function packagesOfCheckout(): string {
  if (!compiled) return join(import.meta.dir, "../../../python");
  throw new HearthError("USAGE", "--driver is required: the folder python/ of a checkout");
}
