import { HearthError } from "../../core/index.ts";
import { benchPolicy, POLICY_NAMES } from "../../workload/bench/index.ts";
import { openTrace } from "../../workload/traces/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, repeated, required, withDefault } from "../flags.ts";
import { choice, integer, list, text } from "../kinds.ts";
import { printRows, type Row } from "../output.ts";
import { createProgress } from "../progress.ts";

export const command = defineCommand({
  description: [
    "Runs traces through simulated caches, each from empty: no agent, no bytes. The hit ratio " +
      "is the share of all blocks asked for that were there, counted up to the first miss of " +
      "each request.",
    `Policies: ${POLICY_NAMES.join(", ")}. best knows the future: no policy can do better.`,
    "With lru and best among them, score says how much of what lies between them a policy wins: " +
      "0 is lru, 1 is best.",
  ],
  arguments: {},
  flags: {
    trace: repeated(text("FILE"), "a trace, or a RAGPulse folder; at least one"),
    capacity: required(list(integer({ min: 1, max: 2 ** 32 - 1 })), "sizes of the cache in blocks"),
    sessions: optional(
      text("FILE"),
      "sessions that a composed trace was made from: simulate their own, smaller blocks",
    ),
    policy: withDefault(
      list(choice(POLICY_NAMES)),
      ["lru"],
      "what leaves the cache when it is full",
    ),
    json: jsonFlag,
  },
  examples: [
    {
      words: "bench policy --trace conversation.jsonl.gz --capacity 1000,3000 --policy lru,hearth",
      what: "four rows: each policy at each size",
    },
    {
      words: "bench policy --trace conversation.jsonl.gz --capacity 10000 --policy lru,hearth,best",
      what: "how much of what LRU leaves the agent's own policy wins",
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
    const progress = createProgress({ io, clock, json: flags.json });
    const rows: Row[] = [];
    const native = flags.sessions === null ? {} : { nativeBlocks: flags.sessions };
    for (const path of flags.trace) {
      const found = await benchPolicy({
        trace: await openTrace(path, native),
        capacities: flags.capacity,
        policies: flags.policy,
        signal,
        onProgress: (done, total) => progress.update(`${path}: ${percent(done, total)}`),
      });
      for (const { trace, capacity, policy, hit_ratio, score, decisions_per_s } of found) {
        rows.push({ trace, capacity, policy, hit_ratio, score, decisions_per_s });
      }
    }
    progress.end();
    printRows(io, rows, flags.json);
    return "ok";
  },
});

function percent(done: number, total: number): string {
  return total === 0 ? "" : `${Math.floor((100 * done) / total)} %`;
}
