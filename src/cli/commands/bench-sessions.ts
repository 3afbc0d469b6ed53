import {
  benchSessions,
  type SessionFigures,
  type SessionsBench,
} from "../../workload/bench/index.ts";
import { openTrace } from "../../workload/traces/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, required } from "../flags.ts";
import { integer, text } from "../kinds.ts";
import { printJson, printRows } from "../output.ts";
import { createProgress } from "../progress.ts";

export const command = defineCommand({
  description: [
    "Runs a trace of conversations through the same RAM twice: once a session's blocks are freed " +
      "as a whole when room is needed, once they age one by one, as in the agent. No agent, no " +
      "bytes. Where the trace names no sessions, they are inferred.",
    "Without --capacity and --ram-tokens RAM holds a twentieth of the trace's distinct blocks, " +
      "and at least two of its longest prompts: never all, so that whole sessions must go.",
  ],
  arguments: {},
  flags: {
    trace: required(text("FILE"), "a trace, or a RAGPulse folder"),
    capacity: optional(integer({ min: 1, max: 2 ** 32 - 1 }), "size of RAM in blocks of the trace"),
    ramTokens: optional(integer({ min: 1, max: 2 ** 48 }), "size of RAM in tokens instead"),
    sessions: optional(
      text("FILE"),
      "sessions that a composed trace was made from: simulate their own, smaller blocks",
    ),
    json: jsonFlag,
  },
  examples: [
    { words: "bench sessions --trace claude_code_composed_512.jsonl.zst", what: "a table" },
    {
      words: "bench sessions --trace conversation.jsonl.gz --ram-tokens 3000000 --json",
      what: "both ways as one JSON document, for 3 M tokens of RAM",
    },
  ],
  exits: ["interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const signal = interrupt();
    const native = flags.sessions === null ? {} : { nativeBlocks: flags.sessions };
    const trace = await openTrace(flags.trace, native);
    const progress = createProgress({ io, clock, json: flags.json });
    const result = await benchSessions({
      trace,
      capacityBlocks: flags.capacity,
      ramTokens: flags.ramTokens,
      signal,
      onProgress: (share) => progress.update(`${trace.name}: ${Math.floor(100 * share)} %`),
    });
    progress.end();
    if (flags.json) {
      printJson(io, result);
      return "ok";
    }
    const { capacity_blocks, capacity_tokens, requests, sessions, sessions_from } = result;
    io.out.write(`${trace.name}: ${requests} turns of ${sessions} sessions (${sessions_from})\n`);
    io.out.write(`RAM for ${capacity_blocks} blocks, ${capacity_tokens} tokens\n\n`);
    printRows(io, rowsOf(result), false);
    return "ok";
  },
});

function rowsOf({ whole_sessions, block_ageing, ratio }: SessionsBench) {
  const names = Object.keys(whole_sessions) as (keyof SessionFigures)[];
  const row = (figure: string, whole: number | null, blocks: number | null) => ({
    figure,
    whole_sessions: whole,
    block_ageing: blocks,
  });
  return [
    ...names.map((name) => row(name, whole_sessions[name], block_ageing[name])),
    row("ratio: a session's tail by a block", ratio.eviction_tokens, null),
    row("ratio: recomputed_tokens", ratio.recomputed_tokens, null),
    row("ratio: prefilled_again_tokens", ratio.prefilled_again_tokens, null),
  ];
}
