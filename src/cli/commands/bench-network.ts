import { choiceKind, integerKind, listKind, sizeKind } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import {
  BENCH_TRANSPORTS,
  benchControl,
  benchPeer,
  benchPeerPulls,
  benchResumption,
  Iperf,
  servePeerBench,
} from "../../workload/bench/index.ts";
import {
  defineCommand,
  fileKind,
  jsonFlag,
  optional,
  toggle,
  urlKind,
  withDefault,
} from "../command.ts";
import { createProgress, printMeasured, printRows } from "../terminal.ts";

const KIB = 2 ** 10;
const MIB = 2 ** 20;
/** Block size and concurrency of the benchmark of many pulls. */
const PULLED = { blockBytes: MIB, inFlight: 8 };
/**
 * Block size and simulated one-way network delay of the benchmark that pulls over a new connection.
 */
const RESUMED = { blockBytes: 64 * KIB, delayMs: 20 };

export const benchPeerCommand = defineCommand({
  description: [
    "Pulls blocks between two temporary processes over loopback, with temporary certificates, " +
      "one request per block, and verifies every byte. In each round, bare programs transfer the " +
      "same amount without verification.",
    "stream is measured with and without encryption, rdma without. gbps: 10^9 bytes of " +
      "payload a second. p50_ms, p99_ms: of a block, from its request to its last byte. " +
      "cpu_s_per_gb: processor time of both ends. bare_gbps: bare node:quic for quic, blocking " +
      "sockets for the others. tcp_gbps: blocking sockets, the better of one connection and " +
      "several. iperf3_gbps: if iperf3 is installed. wrong: damaged blocks. Medians of the " +
      "rounds.",
    "Then each transport pulls --pulls blocks of 1 MiB over one link, 8 at a time: the longest " +
      "of them, and what both processes have in memory, after a fifth of the pulls and at most " +
      "from then on, an arena of 64 MiB included.",
    "Last, connections by quic are made, closed and made again over a relay that keeps each " +
      "datagram for 20 ms: first_ms and again_ms are the times from the dial to the first byte " +
      "of a block.",
  ],
  arguments: {},
  flags: {
    transport: withDefault(
      listKind(choiceKind(BENCH_TRANSPORTS)),
      ["quic", "stream"],
      "transports to measure; rdma needs a device whose ports reach each other",
    ),
    library: optional(fileKind, "the verbs' library for rdma; libibverbs.so.1 by default"),
    blockBytes: withDefault(
      listKind(sizeKind({ min: 4 * KIB, max: 64 * MIB })),
      [256 * KIB, MIB, 4 * MIB, 16 * MIB],
      "lengths of a block",
    ),
    inFlight: withDefault(
      listKind(integerKind({ min: 1, max: 64 })),
      [1, 8],
      "blocks asked for at once",
    ),
    bytes: withDefault(
      sizeKind({ min: MIB }),
      512 * MIB,
      "pulled by each in each round; by quic an eighth",
    ),
    rounds: withDefault(
      integerKind({ min: 0, max: 1000 }),
      5,
      "passes over each rate; 0: no rates",
    ),
    lanes: withDefault(integerKind({ min: 1, max: 16 }), 4, "connections of a stream link"),
    pulls: withDefault(
      integerKind({ min: 0, max: 2 ** 24 }),
      10_000,
      "by each transport, to find the longest; 0: none",
    ),
    resumptions: withDefault(
      integerKind({ min: 0, max: 1_000 }),
      5,
      "connections by quic that are made twice; 0: none",
    ),
    withoutIperf: toggle("do not compare with iperf3"),
    serve: toggle("run as a child process (used by the benchmark)"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench peer", what: "both transports, four sizes, 1 and 8 in flight" },
    { words: "bench peer --transport quic,stream --json", what: "the same, a line of JSON a row" },
    {
      words: "bench peer --transport stream --block-bytes 4MiB --in-flight 8 --pulls 0",
      what: "one rate of the fast path",
    },
    { words: "bench peer --transport rdma,stream --pulls 0", what: "what a NIC is worth" },
    { words: "bench peer --rounds 0", what: "the longest of many pulls, and memory" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { json, serve, withoutIperf, transport: transports, pulls, ...own } = flags;
    const times = transports.includes("quic") ? own.resumptions : 0;
    if (serve) {
      await servePeerBench(loadNative());
      return "ok";
    }
    const progress = createProgress({ io, clock, json });
    const common = {
      ...{ transports, lanes: own.lanes, verbs: own.library ?? null, signal: interrupt() },
      onProgress: (what: string) => progress.update(what),
    };
    const iperf = withoutIperf ? null : Iperf.find();
    const rates = own.rounds === 0 ? [] : await benchPeer({ ...own, ...common, iperf });
    const longest = pulls === 0 ? [] : await benchPeerPulls({ ...common, ...PULLED, pulls });
    const resumed = times === 0 ? [] : [await benchResumption(loadNative(), { ...RESUMED, times })];
    progress.end();
    for (const rows of [rates, longest, resumed]) printRows(io, rows, json);
    return "ok";
  },
});

export const benchControlCommand = defineCommand({
  description: [
    "Sends pins and unpins over NATS to a temporary agent with an SSD tier and a ledger, so " +
      "that each is durable when its receipt arrives; checks every receipt, and compares the " +
      "agent's list of pins at the end. Then it stores a tree in RAM and prunes it by command. " +
      "It starts a private nats-server and removes everything at the end.",
    "commands_per_s, p50_us, p99_us: of commands, from sending to the receipt, with --in-flight " +
      "under way; medians of the rounds. prune_blocks_per_s: by the receipt's own time, median. " +
      "loop_stall_ms_max: the longest response to a RAM hit during the prune, over all rounds; " +
      "loop_busy_ms_max: processor time of the agent's event loop during such a response; " +
      "loop_stall_ms_idle: the longest response in an equally long idle period, which is the " +
      "host's contribution. agent_cpu_us, agent_loop_us: processor time of the agent for each " +
      "command, of all its threads and of its event loop; prune_loop_ns: of the loop for each " +
      "block pruned.",
  ],
  arguments: {},
  flags: {
    nats: optional(urlKind, "a server to use; by default one is started"),
    carrier: withDefault(
      choiceKind(["tcp", "ws"]),
      "tcp",
      "how to reach the server that is started",
    ),
    encoding: withDefault(choiceKind(["json", "msgpack"]), "json", "of commands and receipts"),
    hashes: withDefault(integerKind({ min: 1, max: 1_024 }), 64, "blocks of one command"),
    inFlight: withDefault(integerKind({ min: 1, max: 768 }), 128, "commands under way at once"),
    ramOnly: toggle("an agent without SSD and ledger: nothing is durable"),
    seconds: withDefault(integerKind({ min: 1, max: 3_600 }), 5, "of each round of commands"),
    rounds: withDefault(integerKind({ min: 1, max: 1_000 }), 5, "of commands"),
    pruneBlocks: withDefault(
      integerKind({ min: 0, max: 2 ** 24 }),
      1_000_000,
      "blocks of the tree, 4 KiB of RAM each; 0: no prune",
    ),
    pruneRounds: withDefault(integerKind({ min: 1, max: 1_000 }), 3, "of the prune"),
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
  async run(context) {
    const { json: _, nats: natsUrl, ...options } = context.flags;
    const signal = context.interrupt();
    await printMeasured(context, (onProgress) =>
      benchControl(loadNative(), { ...options, natsUrl, signal, onProgress }),
    );
    return "ok";
  },
});
