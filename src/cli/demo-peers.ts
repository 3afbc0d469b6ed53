import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Clock, formatBytes, HearthError, sleep, type WorkerId } from "../core/index.ts";
import { EngineClient } from "../engine/index.ts";
import { encodeManifest } from "../identity/index.ts";
import { loadNative } from "../native/index.ts";
import { type AuthorityFolder, initAuthority, issueInto, openAuthority } from "../peers/index.ts";
import { rounded } from "../workload/bench/index.ts";
import { type PrivateAgent, replayManifest } from "../workload/replay/index.ts";
import type { Trace } from "../workload/traces/index.ts";
import {
  type DemoContext,
  type OwnAgentOptions,
  openOwnAgent,
  percentText,
  type RunReplayOptions,
  runReplay,
  type TieredSummary,
} from "./commands/replay.ts";

const CLUSTER = "demo";
const DAYS_MS = 86_400_000;
/** Interval at which peers exchange residency summaries, as a configuration value. */
const SUMMARIES = '"200ms"';
const KNOWN_MS = 30_000;
const LOOK_MS = 20;

/**
 * Runs the demo of peers. A first agent serves the first half of the requests. A second agent
 * serves the second half and pulls blocks from the first. A third agent repeats the second half
 * while the first is killed.
 */
export async function demoPeers(
  context: DemoContext,
  own: Omit<OwnAgentOptions, "settings">,
  options: RunReplayOptions & { readonly requests: number },
) {
  const { clock, signal, say } = context;
  const startMs = clock.monotonicMs();
  const half = Math.floor(options.requests / 2);
  const [first, second] = [
    partOf(options.trace, 0, half),
    partOf(options.trace, half, options.requests),
  ];
  using files = new DemoAuthority(clock);
  const run = (agent: PrivateAgent, trace: Trace, requests: number, more = {}) =>
    runReplay(context, agent, { ...options, trace, requests, ...more });

  say("one agent gets all requests, to compare with");
  const single = await withAgent(openOwnAgent({ ...own, policy: "hearth" }, signal), (agent) =>
    run(agent, options.trace, options.requests),
  );
  const open = (worker: string, peers: Readonly<Record<string, string>> = {}) =>
    openOwnAgent({ ...own, settings: files.settings(worker, peers) }, signal);
  await using a = await open("a");
  say("agent a gets the first half");
  const before = await run(a, first, half);
  const peers = { peers: JSON.stringify(await placeOf(a)) };
  say("agent b gets the second half, and pulls from a");
  const rest = options.requests - half;
  const { after, known } = await withAgent(open("b", peers), async (b) => {
    await knowsBlocks(b, options, context);
    return { after: await run(b, second, rest), known: await peerOf(b) };
  });
  say("agent c gets the second half; in the middle of it, a is killed");
  const killed = await withAgent(open("c", peers), async (c) => {
    await knowsBlocks(c, options, context);
    let dead: Promise<void> | null = null;
    const onProgress = ({ requests }: { readonly requests: number }) => {
      if (requests >= rest / 2) dead ??= a.kill();
    };
    const summary = await run(c, second, rest, { onProgress });
    await dead;
    return summary;
  });
  const seconds = (clock.monotonicMs() - startMs) / 1_000;
  return {
    ...summaryOf({ single, before, after, killed }),
    ...known,
    seconds: rounded(seconds, 4),
  };
}

/** Result of `hearth demo --peers --json`; its names are documented. */
type PeersDemo = Awaited<ReturnType<typeof demoPeers>>;

interface Runs {
  readonly single: TieredSummary;
  readonly before: TieredSummary;
  readonly after: TieredSummary;
  readonly killed: TieredSummary;
}

function summaryOf({ single, before, after, killed }: Runs) {
  const sum = (pick: (run: TieredSummary) => number | undefined) =>
    (pick(before) ?? 0) + (pick(after) ?? 0);
  const asked = sum((run) => run.blocks_asked);
  const hit = sum((run) => run.blocks_hit);
  return {
    requests: sum((run) => run.requests),
    blocks_asked: asked,
    blocks_hit: hit,
    /** Both agents together. */
    hit_ratio: asked === 0 ? 0 : rounded(hit / asked, 4),
    /** One agent that got all requests. */
    hit_ratio_single: single.hit_ratio,
    hits_ram: sum((run) => run.hits_ram),
    hits_ssd: sum((run) => run.hits_ssd),
    hits_peer: sum((run) => run.hits_peer),
    /** Results with the first agent killed in the middle of the second half. */
    requests_around_kill: killed.requests,
    hits_peer_before_kill: killed.hits_peer ?? 0,
    hit_ratio_around_kill: killed.hit_ratio,
    /** In all runs. */
    wrong_bytes: single.wrong_bytes + sum((run) => run.wrong_bytes) + killed.wrong_bytes,
  };
}

/** Formats the result of the peers demo as text. */
export function peersDemoText(demo: PeersDemo): string {
  const goodput = demo.goodput === null ? "" : `, ${formatBytes(demo.goodput)}/s`;
  const { hits_peer: pulled, hits_peer_before_kill: pulledBefore } = demo;
  return [
    `requests              ${demo.requests}, ${demo.blocks_asked} blocks asked`,
    `two agents            ${percentText(demo.hit_ratio)} of blocks hit`,
    `one agent             ${percentText(demo.hit_ratio_single)} of blocks hit`,
    `hits in RAM, on SSD   ${demo.hits_ram} and ${demo.hits_ssd} blocks`,
    `pulled from the peer  ${pulled} blocks by ${demo.transport ?? "nothing"}${goodput}`,
    `killed midway         ${percentText(demo.hit_ratio_around_kill)} of blocks hit, no error`,
    `  pulled before that   ${pulledBefore} blocks`,
    `proof                 ${demo.wrong_bytes} wrong bytes`,
    "",
  ].join("\n");
}

/** Certificates of a temporary cluster, in a folder that disposing removes. */
class DemoAuthority implements Disposable {
  readonly #folder = mkdtempSync(join(tmpdir(), "hearth-ca-"));
  readonly #authority: AuthorityFolder;
  readonly #validity: { readonly notBeforeMs: number; readonly notAfterMs: number };

  constructor(clock: Clock) {
    const nowMs = clock.wallMs();
    this.#validity = { notBeforeMs: nowMs - DAYS_MS, notAfterMs: nowMs + 2 * DAYS_MS };
    const dir = join(this.#folder, "ca");
    initAuthority(dir, CLUSTER, this.#validity);
    this.#authority = openAuthority(dir);
  }

  /** Returns the configuration of an agent with its own certificate and free ports. */
  settings(worker: string, peers: Readonly<Record<string, string>>) {
    const options = { worker: worker as WorkerId, validity: this.#validity, renew: false };
    const issued = issueInto(join(this.#folder, worker), this.#authority, options);
    const listen = '"127.0.0.1:0"';
    return {
      node: { id: JSON.stringify(worker) },
      peers: {
        cluster: JSON.stringify(CLUSTER),
        cert_file: JSON.stringify(issued.certFile),
        key_file: JSON.stringify(issued.keyFile),
        ca_file: JSON.stringify(issued.caFile),
        ...{ listen_stream: listen, listen_quic: listen, summaries: SUMMARIES },
        ...peers,
      },
    };
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function withAgent<T>(
  opening: Promise<PrivateAgent>,
  use: (agent: PrivateAgent) => Promise<T>,
): Promise<T> {
  await using agent = await opening;
  return await use(agent);
}

/** Returns a trace of the requests from number `from` up to, but not including, number `to`. */
function partOf(trace: Trace, from: number, to: number): Trace {
  return {
    ...trace,
    async *requests() {
      let number = 0;
      for await (const request of trace.requests()) {
        if (number >= to) return;
        if (number++ >= from) yield request;
      }
    },
  };
}

interface PeersShown {
  readonly listening: Readonly<Record<string, { readonly host: string; readonly port: number }>>;
  readonly peers: readonly {
    readonly transport: string | null;
    readonly goodput_bytes_per_second: number | null;
  }[];
}

/** Returns the agent's entry for another agent's `peers.list`. */
async function placeOf(agent: PrivateAgent): Promise<string> {
  const { listening } = await agent.get<PeersShown>("/v1/peers");
  const { stream, quic } = listening;
  if (stream === undefined && quic === undefined) {
    throw new HearthError("UNSUPPORTED", "no transport between hosts works on this host");
  }
  const ports = `${stream?.port ?? ""}${quic === undefined ? "" : `/${quic.port}`}`;
  return `a@127.0.0.1:${ports}`;
}

/** `goodput`: bytes per second of the agent's latest pulls; null if none was measured. */
async function peerOf(agent: PrivateAgent) {
  const [peer] = (await agent.get<PeersShown>("/v1/peers")).peers;
  const { transport = null, goodput_bytes_per_second: goodput = null } = peer ?? {};
  return { transport, goodput: goodput === null ? null : Math.round(goodput) };
}

/**
 * Connects an engine, which makes the agent fetch its peer's summary at once, and waits until the
 * agent knows the peer's blocks.
 */
async function knowsBlocks(
  agent: PrivateAgent,
  { trace, blockBytes }: RunReplayOptions,
  { clock, signal }: DemoContext,
): Promise<void> {
  const manifest = encodeManifest(replayManifest(trace, blockBytes));
  const { socketPath } = agent;
  const options = { socketPath, manifest, name: "demo" };
  await using _engine = await EngineClient.connect(loadNative(), options);
  const untilMs = clock.monotonicMs() + KNOWN_MS;
  while (!/^hearth_peer_summary_bytes [1-9]/m.test(await agent.metrics())) {
    if (clock.monotonicMs() > untilMs) {
      throw new HearthError("DEADLINE", "the agent did not receive its peer's summary");
    }
    await sleep(clock, LOOK_MS, signal);
  }
}
