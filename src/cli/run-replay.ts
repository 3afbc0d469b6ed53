import { readMemoryFacts } from "../config/index.ts";
import { type Clock, formatBytes, HearthError } from "../core/index.ts";
import { loadNative } from "../native/index.ts";
import { fileBytesOf } from "../store/kvb/index.ts";
import {
  PrivateAgent,
  type PrivateAgentOptions,
  type ReplaySummary,
  type ReplayTally,
  replay,
} from "../workload/replay/index.ts";
import type { Trace } from "../workload/traces/index.ts";
import type { Io } from "./io.ts";
import { createReplayView } from "./replay-view.ts";

export interface ReplayContext {
  readonly io: Io;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

export interface OwnAgentOptions {
  readonly ramBlocks: number;
  /** Blocks that fit on SSD; 0: RAM alone. */
  readonly ssdBlocks: number;
  readonly blockBytes: number;
  readonly policy: string;
  /** Further keys of its configuration; see `PrivateAgentOptions`. */
  readonly settings?: PrivateAgentOptions["settings"];
}

export interface RunReplayOptions {
  readonly trace: Trace;
  /** Requests in the trace, for the progress bar; null where unknown. */
  readonly requests: number | null;
  readonly blockBytes: number;
  readonly clients: number;
  readonly speed: number;
  readonly requestsMax: number;
  readonly json: boolean;
  readonly onProgress?: (tally: ReplayTally) => void;
}

/** With an agent of our own, which tier the hits came from. */
export type TieredSummary = ReplaySummary & {
  readonly hits_ram?: number;
  readonly hits_ssd?: number;
  readonly hits_peer?: number;
};

const PAGE = 4096;
const STATUS_MS = 250;
/** An SSD of 50 MB/s has written a block of a megabyte by then a hundred times over. */
const PATIENCE_MS = 10_000;

/** Starts an agent with room for so many blocks, in a temporary folder. */
export function openOwnAgent(options: OwnAgentOptions, signal: AbortSignal): Promise<PrivateAgent> {
  const { ramBlocks, ssdBlocks, blockBytes, policy } = options;
  const ramBytes = ramBlocks * Math.ceil(blockBytes / PAGE) * PAGE;
  checkMemory(ramBytes);
  return PrivateAgent.start({
    ramBytes,
    ssdBytes: ssdBlocks === 0 ? null : ssdBlocks * fileBytesOf(blockBytes),
    policy,
    ...(options.settings === undefined ? {} : { settings: options.settings }),
    blocksMax: tableSize(ramBlocks + ssdBlocks),
    signal,
  });
}

/** Replays a trace against an agent, ours or that of a socket, with a view on standard error. */
export async function runReplay(
  context: ReplayContext,
  target: PrivateAgent | string,
  options: RunReplayOptions,
): Promise<TieredSummary> {
  const { io, clock, signal } = context;
  const own = typeof target === "string" ? null : target;
  let status = await own?.status();
  const before = status?.counters;
  using _poll = own === null ? null : clock.every(STATUS_MS, () => void poll(own));
  const poll = async (agent: PrivateAgent) => {
    // The view is for show: a status that does not come is simply not shown.
    status = await agent.status().catch(() => status);
  };
  const ram = () => ({ used: status?.ram.bytes ?? 0, bytes: status?.arena.bytes ?? 0 });
  const { json, requests } = options;
  const view = createReplayView({ io, clock, json, requests, ram: own === null ? null : ram });
  try {
    const summary = await replay(loadNative(), {
      trace: options.trace,
      socketPath: typeof target === "string" ? target : target.socketPath,
      blockBytes: options.blockBytes,
      clients: options.clients,
      speed: options.speed,
      requestsMax: options.requestsMax,
      patienceMs: (status?.ssd ?? null) === null ? 0 : PATIENCE_MS,
      signal,
      onProgress: (tally) => {
        view.update(tally);
        options.onProgress?.(tally);
      },
    });
    if (own === null) return summary;
    const { counters } = await own.status();
    const since = (name: string) => (counters[name] ?? 0) - (before?.[name] ?? 0);
    const hits_ssd = since("acquire_hits_ssd");
    const hits_peer = since("acquire_hits_peer");
    const hits_ram = since("acquire_hits") - hits_ssd - hits_peer;
    return { ...summary, hits_ram, hits_ssd, hits_peer };
  } catch (error) {
    // The line broke because the agent did: that is what its owner wants to hear.
    throw (await own?.ended()) ?? error;
  } finally {
    view.end();
  }
}

function checkMemory(ramBytes: number): void {
  const free = readMemoryFacts().availableBytes ?? Number.POSITIVE_INFINITY;
  if (ramBytes <= free) return;
  const text = `the blocks would take ${formatBytes(ramBytes)} and ${formatBytes(free)} are free`;
  throw new HearthError("ARENA_UNAVAILABLE", text, { fix: "lower --ram-blocks or --block-bytes" });
}

/** Resident blocks, those being written, and ancestors that are gone but have children. */
export function tableSize(blocks: number): number {
  return Math.max(65_536, blocks * 2);
}
