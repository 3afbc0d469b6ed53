import {
  choiceKind,
  formatBytes,
  HearthError,
  integerKind,
  type Kind,
  listKind,
  numberKind,
  refuse,
} from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import {
  benchPin,
  benchPolicies,
  benchPolicy,
  Fio,
  PIN_DEPTHS,
  PIN_TIERS,
  POLICY_NAMES,
  pinBlockBytes,
} from "../../workload/bench/index.ts";
import { openTrace } from "../../workload/traces/index.ts";
import {
  defineCommand,
  fileKind,
  folderKind,
  jsonFlag,
  optional,
  repeated,
  required,
  toggle,
  withDefault,
} from "../command.ts";
import { createProgress, printJson, printMeasured, printRows, type Row } from "../terminal.ts";

const scaleLimits = numberKind({ min: 1 / 2560, max: 1 });

/** Parses a share, given as a fraction or a decimal number: `1/64`, `0.5`. */
const scaleKind: Kind<number> = {
  ...scaleLimits,
  placeholder: "FRACTION",
  isNumber: false,
  read(raw) {
    const match = /^([0-9]+(?:\.[0-9]+)?)(?:\/([1-9][0-9]*))?$/.exec(String(raw));
    if (match === null) return refuse(`is "${raw}"`, "give a fraction, as in 1/64");
    return scaleLimits.read(Number(match[1]) / Number(match[2] ?? 1));
  },
  write: (value) => (value < 1 && Number.isInteger(1 / value) ? `1/${1 / value}` : value),
};

export const benchPolicyCommand = defineCommand({
  description: [
    "Runs traces through simulated caches, each from empty: no agent, no bytes. The hit ratio " +
      "is the share of requested blocks that were cached, counted up to the first miss of each " +
      "request.",
    `Policies: ${POLICY_NAMES.join(", ")}. best knows the future: no policy can do better.`,
    "If both lru and best are run, score places a policy between them: 0 is lru, 1 is best.",
  ],
  arguments: {},
  flags: {
    trace: repeated(fileKind, "a trace, or a RAGPulse folder; at least one"),
    capacity: required(
      listKind(integerKind({ min: 1, max: 2 ** 32 - 1 })),
      "sizes of the cache in blocks",
    ),
    sessions: optional(
      fileKind,
      "sessions that a composed trace was made from: simulate their own, smaller blocks",
    ),
    policy: withDefault(listKind(choiceKind(POLICY_NAMES)), ["lru"], "eviction policies to run"),
    json: jsonFlag,
  },
  examples: [
    {
      words: "bench policy --trace conversation.jsonl.gz --capacity 1000,3000 --policy lru,hearth",
      what: "four rows: each policy at each size",
    },
    {
      words: "bench policy --trace conversation.jsonl.gz --capacity 10000 --policy lru,hearth,best",
      what: "the agent's policy between LRU and the optimum",
    },
    {
      words: "bench policy --trace a.jsonl --trace b.jsonl --capacity 10000 --json",
      what: "one JSON document a row",
    },
  ],
  exits: ["interrupted"],
  async run({ flags, io, clock, interrupt }) {
    if (flags.trace.length === 0) throw new HearthError("USAGE", "--trace FILE is missing");
    const signal = interrupt();
    const native = flags.sessions === null ? {} : { nativeBlocks: flags.sessions };
    await printMeasured({ flags, io, clock }, async (onProgress) => {
      const rows: Row[] = [];
      for (const path of flags.trace) {
        const found = await benchPolicy({
          trace: await openTrace(path, native),
          capacities: flags.capacity,
          policies: flags.policy,
          signal,
          onProgress: (done, total) => onProgress(`${path}: ${percent(done, total)}`),
        });
        for (const { trace, capacity, policy, hit_ratio, score, decisions_per_s } of found) {
          rows.push({ trace, capacity, policy, hit_ratio, score, decisions_per_s });
        }
      }
      return rows;
    });
    return "ok";
  },
});

function percent(done: number, total: number): string {
  return total === 0 ? "" : `${Math.floor((100 * done) / total)} %`;
}

export const benchPoliciesCommand = defineCommand({
  description: [
    "Runs a trace of conversations through simulated agents in simulated time: without " +
      "policies, with each of the router's alone, and with all. Agents have RAM and SSD with LRU " +
      "eviction, and execute commands as docs/reference/commands.md describes; blocks have no payload.",
    "In the middle of the trace one worker is replaced by an empty one; later another worker " +
      "loses its RAM. Without --ram, the RAM of all workers together holds a twentieth of the " +
      "trace's distinct blocks, and SSD four times as many.",
  ],
  arguments: {},
  flags: {
    trace: required(fileKind, "a trace, or a RAGPulse folder"),
    sessions: optional(
      fileKind,
      "sessions that a composed trace was made from: simulate their own, smaller blocks",
    ),
    workers: withDefault(integerKind({ min: 2, max: 64 }), 4, "agents"),
    ram: optional(integerKind({ min: 1, max: 2 ** 31 }), "RAM of each, in blocks of the trace"),
    ssd: optional(integerKind({ min: 0, max: 2 ** 31 }), "SSD of each, in blocks"),
    leadMs: withDefault(
      integerKind({ min: 0, max: 600_000 }),
      5_000,
      "how long before its request a user's return is announced",
    ),
    json: jsonFlag,
  },
  examples: [
    { words: "bench policies --trace claude_code_composed_512.jsonl.zst", what: "a table" },
    {
      words: "bench policies --trace conversation.jsonl.gz --ram 2000 --ssd 0 --json",
      what: "agents without SSD, as one JSON document",
    },
  ],
  exits: ["interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const signal = interrupt();
    const native = flags.sessions === null ? {} : { nativeBlocks: flags.sessions };
    const trace = await openTrace(flags.trace, native);
    const progress = createProgress({ io, clock, json: flags.json });
    const result = await benchPolicies({
      ...{ trace, signal, workers: flags.workers, leadMs: flags.leadMs },
      ...{ ramBlocks: flags.ram, ssdBlocks: flags.ssd },
      onProgress: (run) => progress.update(`${trace.name}: ${run}`),
    });
    progress.end();
    if (flags.json) {
      printJson(io, result);
      return "ok";
    }
    const { requests, sessions, workers, ram_blocks, ssd_blocks, runs } = result;
    io.out.write(`${trace.name}: ${requests} turns of ${sessions} sessions\n`);
    io.out.write(`${workers} workers, RAM for ${ram_blocks} blocks, SSD for ${ssd_blocks}\n\n`);
    printRows(
      io,
      runs.map(({ blocks, declined, ...row }) => ({ ...row, blocks_done: blocks.done ?? 0 })),
      false,
    );
    return "ok";
  },
});

const POLICIES = ["hearth", "lru"] as const;

export const benchPinCommand = defineCommand({
  description: [
    "Stores two conversations of 3,158 to 15,002 tokens in a temporary agent whose RAM holds " +
      "42,816 tokens, pins the older one by engine hash over the command plane, floods the agent " +
      "with three times as many tokens, and requests both again. Blocks have 64 tokens of 160 " +
      "KiB, times --scale.",
    "tier ram: without SSD, pinned blocks stay in RAM. ssd: with an SSD tier half as large " +
      "again; the flood is three times both, and the pinned blocks are only on SSD when they are " +
      "requested. cached_share_*: share of full blocks that were cached. restore_gbps: acquire " +
      "and copy out of all of them. limit_gbps: the same copy-out from RAM as in `bench engine`, " +
      "or fio reading with the same length and depth in the same folder. Medians; a flood that " +
      "does not evict the unpinned blocks is an error.",
  ],
  arguments: {},
  flags: {
    dir: optional(folderKind, "a folder on the drive to measure; by default TMPDIR or /var/tmp"),
    tier: withDefault(listKind(choiceKind(PIN_TIERS)), PIN_TIERS, "which rows"),
    depth: withDefault(listKind(integerKind()), PIN_DEPTHS, "depth: turns of the conversation"),
    scale: withDefault(scaleKind, 1 / 64, "of 160 KiB a token"),
    runs: withDefault(integerKind({ min: 1, max: 1000 }), 3, "passes over each depth"),
    policy: withDefault(choiceKind(POLICIES), "hearth", "which blocks leave RAM first"),
    withoutFio: toggle("do not compare with fio"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench pin", what: "blocks of 160 KiB, from RAM and from SSD" },
    { words: "bench pin --tier ram --scale 1/16 --json", what: "blocks of 640 KiB, from RAM" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { scale, runs, policy, tier: tiers } = flags;
    const unknown = flags.depth.find((depth) => !PIN_DEPTHS.includes(depth));
    if (unknown !== undefined) {
      const text = `--depth is one of ${PIN_DEPTHS.join(", ")}, not ${unknown}`;
      throw new HearthError("USAGE", text);
    }
    const dir = flags.dir ?? process.env.TMPDIR ?? "/var/tmp";
    const fio = flags.withoutFio ? null : Fio.find();
    const blocks = `blocks of ${formatBytes(pinBlockBytes(scale))}`;
    const own = { scale, runs, policy, tiers, depths: flags.depth, dir, fio, signal: interrupt() };
    await printMeasured({ flags, io, clock }, (onProgress) =>
      benchPin(loadNative(), { ...own, onProgress: (what) => onProgress(`${blocks}, ${what}`) }),
    );
    if (fio !== null || flags.withoutFio || !tiers.includes("ssd")) return "ok";
    io.err.write(
      "fio is not installed, so there is nothing to compare with: apt-get install fio\n",
    );
    return "hostCannot";
  },
});
