import { loadNative } from "../../native/index.ts";
import { benchControl } from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, toggle, withDefault } from "../flags.ts";
import { choice, integer, text } from "../kinds.ts";
import { printRecord } from "../output.ts";
import { createProgress } from "../progress.ts";

export const command = defineCommand({
  description: [
    "Sends pins and unpins over NATS to an agent of its own, with an SSD tier and a ledger, so " +
      "that each is on disk when its receipt comes; awaits and checks every receipt, and " +
      "compares the agent's list of pins at the end. Then it stores a tree in RAM and prunes it " +
      "by command. It starts a nats-server of its own and leaves nothing behind.",
    "commands_per_s, p50_us, p99_us: of commands, from sending to the receipt, with --in-flight " +
      "under way; medians of the rounds. prune_blocks_per_s: by the receipt's own time, median. " +
      "loop_stall_ms_max: the longest answer of the agent to a hit in RAM, asked for all the " +
      "time while it prunes, over all rounds; loop_busy_ms_max: how long the agent's loop was on " +
      "a processor during such an answer; loop_stall_ms_idle: the longest answer in as long with " +
      "nothing going on, which is what the host adds. agent_cpu_us, agent_loop_us: processor " +
      "time of the agent for each command, of all its threads and of its event loop; " +
      "prune_loop_ns: of the loop for each block pruned.",
  ],
  arguments: {},
  flags: {
    nats: optional(text("URL"), "a server to use; by default one is started"),
    carrier: withDefault(choice(["tcp", "ws"]), "tcp", "how to reach the server that is started"),
    encoding: withDefault(choice(["json", "msgpack"]), "json", "of commands and receipts"),
    hashes: withDefault(integer({ min: 1, max: 1_024 }), 64, "blocks of one command"),
    inFlight: withDefault(integer({ min: 1, max: 768 }), 128, "commands under way at once"),
    ramOnly: toggle("an agent without SSD and ledger: nothing is durable"),
    seconds: withDefault(integer({ min: 1, max: 3_600 }), 5, "of each round of commands"),
    rounds: withDefault(integer({ min: 1, max: 1_000 }), 5, "of commands"),
    pruneBlocks: withDefault(
      integer({ min: 0, max: 2 ** 24 }),
      1_000_000,
      "blocks of the tree, 4 KiB of RAM each; 0: no prune",
    ),
    pruneRounds: withDefault(integer({ min: 1, max: 1_000 }), 3, "of the prune"),
    json: jsonFlag,
  },
  examples: [
    {
      words: "bench control",
      what: "commands for 25 s, three prunes of a million blocks",
    },
    { words: "bench control --json --prune-blocks 0", what: "commands alone, as JSON" },
    { words: "bench control --nats nats://127.0.0.1:4222", what: "over a server that runs" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { json, nats: natsUrl, ...options } = flags;
    const signal = interrupt();
    const progress = createProgress({ io, clock, json });
    const onProgress = (what: string) => progress.update(what);
    const result = await benchControl(loadNative(), { ...options, natsUrl, signal, onProgress });
    progress.end();
    printRecord(io, { ...result }, json);
    return "ok";
  },
});
