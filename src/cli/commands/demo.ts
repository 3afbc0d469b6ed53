import { type Clock, formatBytes } from "../../core/index.ts";
import {
  formatSummary,
  PREFILL_TOKENS_PER_S,
  type PrivateAgent,
} from "../../workload/replay/index.ts";
import { bundledTrace } from "../../workload/traces/index.ts";
import { defineCommand } from "../command.ts";
import { clusterDemoText, demoCluster } from "../demo-cluster.ts";
import { demoPeers, peersDemoText } from "../demo-peers.ts";
import { jsonFlag, toggle, withDefault } from "../flags.ts";
import type { Io } from "../io.ts";
import { bytes, integer } from "../kinds.ts";
import { printJson } from "../output.ts";
import {
  openOwnAgent,
  type RunReplayOptions,
  runReplay,
  type TieredSummary,
} from "../run-replay.ts";

const KIB = 1024;
const REQUESTS = 1000;
/** Requests under way at a time in a cluster. */
const CLUSTER_CLIENTS = 8;

export const command = defineCommand({
  description: [
    "Starts an agent in a temporary folder and sends it a trace of real traffic: 1,000 " +
      "requests of Kimi users, recorded by Mooncake, in blocks of 512 tokens. An engine in " +
      "another process writes and reads the blocks through shared memory and proves every byte " +
      "it reads.",
    "RAM holds some of the blocks, SSD all of them. Then the agent is stopped, started again and " +
      "sent the same requests; then it is killed and started again. Nothing is left behind.",
    "With --peers, two agents with certificates of their own get half of the requests each, and " +
      "the second pulls from the first what that has; then another one does so while the first " +
      "is killed.",
    "With --cluster, a router sends each request to one of four agents: at random, in turn, and " +
      "by what the agents hold. They speak over a nats-server " +
      "where this host has one, else inside this process. One agent with the memory of all four " +
      "shows what could be had at best.",
    "It takes --ram-blocks times --block-bytes of memory, and as much of the temporary folder " +
      "as the blocks on SSD need (850 MB unless told otherwise).",
  ],
  arguments: {},
  flags: {
    ramBlocks: withDefault(integer({ min: 300, max: 2 ** 22 }), 1000, "blocks that fit into RAM"),
    ssdBlocks: withDefault(
      integer({ min: 0, max: 2 ** 22 }),
      16_384,
      "blocks that fit on SSD; 0: RAM alone, and no restarts",
    ),
    blockBytes: withDefault(bytes({ min: 64, max: 2 ** 28 }), 64 * KIB, "length of a block"),
    clients: withDefault(integer({ min: 1, max: 64 }), 1, "engines at the same time"),
    requests: withDefault(
      integer({ min: 10, max: REQUESTS }),
      REQUESTS,
      "of the trace, from its first on",
    ),
    peers: toggle("two agents that pull from each other, and one that is killed meanwhile"),
    cluster: toggle("four agents and a router that chooses among them"),
    workers: withDefault(integer({ min: 1, max: 16 }), 4, "agents of --cluster"),
    inProcess: toggle("with --cluster: do without a nats-server where there is one"),
    json: jsonFlag,
  },
  examples: [
    { words: "demo", what: "a live view, then the summary" },
    { words: "demo --ram-blocks 3000 --ssd-blocks 0", what: "without SSD: fewer hits" },
    { words: "demo --peers", what: "half of the requests on each of two hosts" },
    { words: "demo --cluster", what: "a router in front of four agents" },
    { words: "demo --json", what: "the summary as the last line" },
  ],
  exits: ["hostCannot", "wrongBytes", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { ramBlocks, ssdBlocks, blockBytes, clients, requests, json } = flags;
    const signal = interrupt();
    const trace = await bundledTrace();
    const options: RunReplayOptions = {
      ...{ trace, requests, blockBytes, clients, json },
      speed: 0,
      requestsMax: requests,
    };
    if (flags.cluster) {
      const { workers, inProcess: isLocal } = flags;
      const say = (text: string) => json || io.err.write(`${text}\n`);
      const demo = await demoCluster(
        { io, clock, signal, say },
        {
          trace,
          requests,
          workers,
          ramBlocks,
          blockBytes,
          json,
          isLocal,
          clients: CLUSTER_CLIENTS,
        },
      );
      if (json) printJson(io, demo);
      else io.out.write(clusterDemoText(demo));
      return demo.wrong_bytes === 0 ? "ok" : "wrongBytes";
    }
    const room = `${ramBlocks} blocks of ${formatBytes(blockBytes)} in RAM`;
    const more = ssdBlocks === 0 ? "" : ` and ${ssdBlocks} on SSD`;
    const say = (text: string) => json || io.err.write(`${text}\n`);
    say(`${requests} recorded requests against an agent with ${room}${more}`);
    if (flags.peers) {
      const own = { ramBlocks, ssdBlocks, blockBytes, policy: "hearth" };
      const context = { io, clock, signal, say };
      const demo = await demoPeers(context, own, { ...options, requests });
      if (json) printJson(io, demo);
      else io.out.write(peersDemoText(demo));
      return demo.wrong_bytes === 0 ? "ok" : "wrongBytes";
    }
    await using agent = await openOwnAgent({ ...flags, policy: "hearth" }, signal);
    const summary = await runReplay({ io, clock, signal }, agent, options);
    const passes =
      ssdBlocks === 0 ? null : await restarts({ io, clock, signal, agent, say }, options);
    const wrong_bytes = summary.wrong_bytes + (passes?.wrong_bytes ?? 0);
    if (json) printJson(io, { ...summary, ...passes, wrong_bytes });
    else
      io.out.write(`${formatSummary(summary, PREFILL_TOKENS_PER_S)}\n${wordsOf(summary, passes)}`);
    return wrong_bytes === 0 ? "ok" : "wrongBytes";
  },
});

interface Passes {
  readonly hit_ratio_after_restart: number;
  readonly hit_ratio_after_kill: number;
  /** Milliseconds from the start of the process until it served. */
  readonly restart_ms: number;
  readonly restart_after_kill_ms: number;
  readonly wrong_bytes: number;
}

interface RestartContext {
  readonly io: Io;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly agent: PrivateAgent;
  say(text: string): void;
}

/** The same requests again after the agent was stopped, and again after it was killed. */
async function restarts(context: RestartContext, options: RunReplayOptions): Promise<Passes> {
  const { agent, signal, say } = context;
  say("stopping the agent (SIGTERM) and starting it again");
  const restart_ms = Math.round(await agent.restart("SIGTERM", signal));
  const stopped = await runReplay(context, agent, options);
  say("killing the agent (SIGKILL) and starting it again");
  const restart_after_kill_ms = Math.round(await agent.restart("SIGKILL", signal));
  const killed = await runReplay(context, agent, options);
  return {
    hit_ratio_after_restart: stopped.hit_ratio,
    hit_ratio_after_kill: killed.hit_ratio,
    restart_ms,
    restart_after_kill_ms,
    wrong_bytes: stopped.wrong_bytes + killed.wrong_bytes,
  };
}

function wordsOf(summary: TieredSummary, passes: Passes | null): string {
  if (passes === null) return "";
  const percent = (ratio: number) => `${(100 * ratio).toFixed(2)} %`;
  const { hit_ratio_after_restart, hit_ratio_after_kill } = passes;
  const again = (ratio: number, ms: number) =>
    `${percent(ratio)} of blocks hit, served again after ${ms} ms`;
  return [
    `  hits in RAM, on SSD   ${summary.hits_ram} and ${summary.hits_ssd} blocks`,
    `  after a restart       ${again(hit_ratio_after_restart, passes.restart_ms)}`,
    `  after a kill          ${again(hit_ratio_after_kill, passes.restart_after_kill_ms)}`,
    "",
  ].join("\n");
}
