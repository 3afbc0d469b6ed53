import { HearthError } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { benchGpu } from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, withDefault } from "../flags.ts";
import { bytes, integer, text } from "../kinds.ts";
import { printRecord } from "../output.ts";
import { createProgress } from "../progress.ts";

const MIB = 2 ** 20;
/** The largest pieces. */
const UNIT = 16 * MIB;

export const command = defineCommand({
  description: [
    "Copies an arena like an agent's to memory of a GPU and back, in jobs of 64 MiB as engines " +
      "ask for them, and compares every byte that comes back. In the same rounds a plain loop " +
      "over the driver copies pinned memory of its own.",
    "h2d is to the GPU, d2h from it; 10^9 bytes a second, medians of the rounds. h2d_gbps: " +
      "pieces of 16 MiB. h2d_1mib_gbps: of 1 MiB. scatter_gbps, gather_gbps: of 64 KiB, to the " +
      "GPU and from it; no two pieces are neighbours on both sides. bare_h2d_gbps: the plain " +
      "loop, 16 MiB a call. bare_64kib_h2d_gbps: the same, 64 KiB a call. NAME_of_bare: over the " +
      "plain loop of 16 MiB. pageable: copies that blocked a thread. wrong: round trips after " +
      "which a byte was another. stand_in: the library is the tests' own, and the rates say " +
      "nothing of a GPU.",
  ],
  arguments: {},
  flags: {
    bytes: withDefault(bytes({ min: UNIT }), 512 * MIB, "copied each way by each measurement"),
    rounds: withDefault(integer({ min: 1, max: 10_000 }), 9, "measurements of each rate"),
    device: withDefault(integer({ min: 0, max: 63 }), 0, "which GPU, counted as the driver does"),
    library: optional(text("FILE"), "the driver's library; libcuda.so.1 by default"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench gpu", what: "the first GPU" },
    { words: "bench gpu --device 1 --json", what: "the second, as one line of JSON" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { json, ...own } = flags;
    if (own.bytes % UNIT !== 0) throw new HearthError("USAGE", "--bytes wants a multiple of 16MiB");
    const progress = createProgress({ io, clock, json });
    const onProgress = (what: string) => progress.update(what);
    const result = await benchGpu(loadNative(), { ...own, signal: interrupt(), onProgress });
    progress.end();
    const { bareLarge, bareSmall, large, middle, small } = result;
    const record = {
      device: result.device,
      driver: result.driver,
      stand_in: result.isStandIn,
      batches: result.hasBatches,
      bytes: own.bytes,
      rounds: own.rounds,
      h2d_gbps: large.h2d,
      d2h_gbps: large.d2h,
      h2d_1mib_gbps: middle.h2d,
      d2h_1mib_gbps: middle.d2h,
      scatter_gbps: small.h2d,
      gather_gbps: small.d2h,
      bare_h2d_gbps: bareLarge.h2d,
      bare_d2h_gbps: bareLarge.d2h,
      bare_64kib_h2d_gbps: bareSmall.h2d,
      bare_64kib_d2h_gbps: bareSmall.d2h,
      h2d_of_bare: large.h2d / bareLarge.h2d,
      d2h_of_bare: large.d2h / bareLarge.d2h,
      h2d_1mib_of_bare: middle.h2d / bareLarge.h2d,
      d2h_1mib_of_bare: middle.d2h / bareLarge.d2h,
      scatter_of_bare: small.h2d / bareLarge.h2d,
      gather_of_bare: small.d2h / bareLarge.d2h,
      pageable: result.pageable,
      wrong: result.wrong,
    };
    printRecord(io, record, json);
    return "ok";
  },
});
