import { readMemoryFacts } from "../config/index.ts";
import { type Clock, formatBytes, HearthError } from "../core/index.ts";
import { loadNative } from "../native/index.ts";
import { PrivateAgent, type ReplaySummary, replay } from "../replay/index.ts";
import type { Trace } from "../traces/index.ts";
import type { Io } from "./io.ts";
import { createReplayView } from "./replay-view.ts";

export interface RunReplayOptions {
  readonly trace: Trace;
  /** Requests in the trace, for the progress bar; null where unknown. */
  readonly requests: number | null;
  /** The agent to use; null: one of our own, with room for `ramBlocks`. */
  readonly socketPath: string | null;
  readonly ramBlocks: number;
  readonly blockBytes: number;
  readonly clients: number;
  readonly speed: number;
  readonly requestsMax: number;
  readonly json: boolean;
}

const PAGE = 4096;
const STATUS_MS = 250;

/** Replays a trace against an agent, with a view of it on standard error. */
export async function runReplay(
  context: { readonly io: Io; readonly clock: Clock; interrupt(): AbortSignal },
  options: RunReplayOptions,
): Promise<ReplaySummary> {
  const { io, clock } = context;
  const native = loadNative();
  const signal = context.interrupt();
  const slotBytes = Math.ceil(options.blockBytes / PAGE) * PAGE;
  const ramBytes = options.ramBlocks * slotBytes;
  if (options.socketPath === null) checkMemory(ramBytes);
  await using own =
    options.socketPath === null
      ? await PrivateAgent.start({ ramBytes, blocksMax: tableSize(options.ramBlocks), signal })
      : null;
  let used = 0;
  using _poll = own === null ? null : clock.every(STATUS_MS, () => void poll(own));
  const poll = async (agent: PrivateAgent) => {
    // The view is for show: a status that does not come is simply not shown.
    used = await agent.status().then(
      ({ ram }) => ram.bytes,
      () => used,
    );
  };
  const view = createReplayView({
    io,
    clock,
    json: options.json,
    requests: options.requests,
    ram: own === null ? null : () => ({ used, bytes: ramBytes }),
  });
  try {
    return await replay(native, {
      trace: options.trace,
      socketPath: own?.socketPath ?? options.socketPath!,
      blockBytes: options.blockBytes,
      clients: options.clients,
      speed: options.speed,
      requestsMax: options.requestsMax,
      signal,
      onProgress: (tally) => view.update(tally),
    });
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
function tableSize(ramBlocks: number): number {
  return Math.max(65_536, ramBlocks * 2);
}
