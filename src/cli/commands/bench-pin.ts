import { formatBytes, HearthError } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { benchPin, Fio, PIN_DEPTHS, PIN_TIERS, pinBlockBytes } from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, toggle, withDefault } from "../flags.ts";
import { choice, fraction, integer, list, text } from "../kinds.ts";
import { printRows } from "../output.ts";
import { createProgress } from "../progress.ts";

const POLICIES = ["hearth", "lru"] as const;

export const command = defineCommand({
  description: [
    "Stores two conversations of 3,158 to 15,002 tokens in an agent of its own whose RAM holds " +
      "42,816 tokens, the older one pinned by engine hash over the command plane, floods it with " +
      "three times as many others, and asks for both again. Blocks have 64 tokens of 160 KiB, " +
      "times --scale.",
    "tier ram: without SSD, pinned blocks stay in RAM. ssd: with an SSD tier half as large " +
      "again; the flood is three times both, and the pinned blocks are on SSD alone when they " +
      "are asked for. cached_share_*: full blocks that were there. restore_gbps: acquire and " +
      "copy out of all of them. limit_gbps: the same copy-out from RAM as in `bench engine`, or " +
      "fio reading with the same length and depth in the same folder. Medians; a flood that " +
      "leaves unpinned blocks where they were is an error.",
  ],
  arguments: {},
  flags: {
    dir: optional(text("DIR"), "a folder on the drive to measure; by default TMPDIR or /var/tmp"),
    tier: withDefault(list(choice(PIN_TIERS)), PIN_TIERS, "which rows"),
    depth: withDefault(list(integer()), PIN_DEPTHS, "after so many turns of a conversation"),
    scale: withDefault(fraction({ min: 1 / 2560, max: 1 }), 1 / 64, "of 160 KiB a token"),
    runs: withDefault(integer({ min: 1, max: 1000 }), 3, "passes over each depth"),
    policy: withDefault(choice(POLICIES), "hearth", "which blocks leave RAM first"),
    withoutFio: toggle("do not compare with fio"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench pin", what: "blocks of 160 KiB, from RAM and from SSD" },
    { words: "bench pin --tier ram --scale 1/16 --json", what: "blocks of 640 KiB, from RAM" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { json, scale, runs, policy, tier: tiers } = flags;
    const unknown = flags.depth.find((depth) => !PIN_DEPTHS.includes(depth));
    if (unknown !== undefined) {
      const text = `--depth is one of ${PIN_DEPTHS.join(", ")}, not ${unknown}`;
      throw new HearthError("USAGE", text);
    }
    const dir = flags.dir ?? process.env.TMPDIR ?? "/var/tmp";
    const fio = flags.withoutFio ? null : Fio.find();
    const progress = createProgress({ io, clock, json });
    const onProgress = (what: string) =>
      progress.update(`blocks of ${formatBytes(pinBlockBytes(scale))}, ${what}`);
    const own = {
      scale,
      runs,
      policy,
      tiers,
      depths: flags.depth,
      dir,
      fio,
      signal: interrupt(),
      onProgress,
    };
    const rows = await benchPin(loadNative(), own);
    progress.end();
    printRows(
      io,
      rows.map((row) => ({ ...row })),
      json,
    );
    if (fio !== null || flags.withoutFio || !tiers.includes("ssd")) return "ok";
    io.err.write(
      "fio is not installed, so there is nothing to compare with: apt-get install fio\n",
    );
    return "hostCannot";
  },
});
