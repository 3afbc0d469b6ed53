import { benchPolicies } from "../../workload/bench/index.ts";
import { openTrace } from "../../workload/traces/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, required, withDefault } from "../flags.ts";
import { integer, text } from "../kinds.ts";
import { printJson, printRows } from "../output.ts";
import { createProgress } from "../progress.ts";

export const command = defineCommand({
  description: [
    "Runs a trace of conversations through simulated agents in simulated time: without policies, " +
      "with each of the router's alone, and with all. Agents have RAM and SSD, least recently " +
      "used first, and carry commands out as docs/commands.md says; no bytes.",
    "In the middle one worker is replaced by an empty one, later another loses its RAM. Without " +
      "--ram, RAM holds a twentieth of the trace's distinct blocks, all workers together, and " +
      "SSD four times that.",
  ],
  arguments: {},
  flags: {
    trace: required(text("FILE"), "a trace, or a RAGPulse folder"),
    sessions: optional(
      text("FILE"),
      "sessions that a composed trace was made from: simulate their own, smaller blocks",
    ),
    workers: withDefault(integer({ min: 2, max: 64 }), 4, "agents"),
    ram: optional(integer({ min: 1, max: 2 ** 31 }), "RAM of each, in blocks of the trace"),
    ssd: optional(integer({ min: 0, max: 2 ** 31 }), "SSD of each, in blocks"),
    leadMs: withDefault(
      integer({ min: 0, max: 600_000 }),
      5_000,
      "how long before its request a user is known to return, where that is told",
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
