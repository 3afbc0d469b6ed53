import { POLICIES } from "../../store/index.ts";
import { formatSummary, PREFILL_TOKENS_PER_S } from "../../workload/replay/index.ts";
import { openTrace, type Trace } from "../../workload/traces/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, requiredArgument, toggle, withDefault } from "../flags.ts";
import { bytes, choice, decimal, integer, text } from "../kinds.ts";
import { printJson, printRecord } from "../output.ts";
import { openOwnAgent, runReplay } from "../run-replay.ts";

const KIB = 1024;

export const command = defineCommand({
  description: [
    "Plays an engine: for each request of a trace it reads from the agent what is there of " +
      "the prompt and writes the rest. A block's bytes are a function of its name, so that each " +
      "byte read is proven right or counted as wrong.",
    "Traces: Mooncake (JSON lines with hash_ids), Claude Code sessions and the composed file, " +
      "RAGPulse, agent logs, Dynamo request traces, Azure CSV; plain, gzip or Zstandard, told " +
      "by their content.",
    "Without --socket it starts an agent of its own in a temporary folder and stops it at the end.",
    "hit_ratio is blocks hit / blocks asked, where a request hits the longest run of leading " +
      "blocks. Rates are GB/s of one client, with checksums; acquire is the round trip for up " +
      "to 64 blocks.",
  ],
  arguments: { trace: requiredArgument(text("TRACE"), "the trace file, or a RAGPulse folder") },
  flags: {
    socket: optional(text("PATH"), "engine socket of a running agent"),
    ramBlocks: withDefault(integer({ min: 1, max: 2 ** 26 }), 3000, "room of the agent of its own"),
    ssdBlocks: withDefault(integer({ min: 0, max: 2 ** 26 }), 0, "its room on SSD; 0: none"),
    policy: withDefault(choice(POLICIES), "hearth", "what leaves its RAM first"),
    blockBytes: withDefault(bytes({ min: 1, max: 2 ** 32 - 4096 }), 256 * KIB, "length of a block"),
    clients: withDefault(integer({ min: 1, max: 256 }), 1, "engines at the same time"),
    speed: withDefault(
      decimal({ min: 0, max: 1_000_000 }),
      0,
      "multiple of the trace's pace; 0 = as fast as possible",
    ),
    requests: optional(integer({ min: 1 }), "stop after so many requests"),
    prefillRate: withDefault(
      integer({ min: 1 }),
      PREFILL_TOKENS_PER_S,
      "tokens/s a GPU prefills, to tell what was saved",
    ),
    dryRun: toggle("only read the trace and count"),
    json: jsonFlag,
  },
  examples: [
    { words: "replay trace.jsonl.gz", what: "against an agent of its own" },
    {
      words: "replay trace.jsonl --socket /run/hearth/engine.sock --clients 8 --json",
      what: "eight engines against the running agent",
    },
    { words: "replay trace.jsonl --speed 10", what: "ten times as fast as it was recorded" },
    { words: "replay trace.jsonl.zst --dry-run", what: "how many requests and blocks it has" },
  ],
  exits: ["hostCannot", "wrongBytes", "interrupted"],
  async run({ flags, arguments: { trace: path }, io, clock, interrupt }) {
    const trace = await openTrace(path);
    if (flags.dryRun) {
      printRecord(io, await count(trace, flags.requests), flags.json);
      return "ok";
    }
    const { requests, socket, blockBytes, clients, speed, json } = flags;
    const signal = interrupt();
    await using own = socket === null ? await openOwnAgent(flags, signal) : null;
    const requestsMax = requests ?? Number.POSITIVE_INFINITY;
    const summary = await runReplay({ io, clock, signal }, own ?? socket!, {
      ...{ trace, requests, blockBytes, clients, speed, requestsMax, json },
    });
    if (flags.json) printJson(io, summary);
    else io.out.write(`${trace.name}\n${formatSummary(summary, flags.prefillRate)}\n`);
    return summary.wrong_bytes === 0 ? "ok" : "wrongBytes";
  },
});

async function count(trace: Trace, requestsMax: number | null) {
  let requests = 0;
  let blocks = 0;
  let distinct = 0;
  let tokens = 0;
  for await (const request of trace.requests()) {
    if (requests === requestsMax) break;
    requests++;
    blocks += request.blocks.length;
    tokens += request.inputTokens;
    // Ids are dense, in order of first sight.
    for (const id of request.blocks) distinct = Math.max(distinct, id + 1);
  }
  return {
    trace: trace.name,
    format: trace.format,
    block_tokens: trace.blockTokens,
    requests,
    blocks_asked: blocks,
    blocks_distinct: distinct,
    tokens_asked: tokens,
  };
}
