import { type ControlClient, prune } from "../../../control/client/index.ts";
import { HearthError, sleep, systemClock } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import { median } from "../measure.ts";
import { ControlHost, hashOf, LoopWatch, loopUsOf } from "./agent-host.ts";

export interface PruneBenchOptions {
  readonly client: ControlClient;
  readonly natsUrl: string;
  readonly workerId: string;
  readonly blocks: number;
  readonly rounds: number;
  readonly signal: AbortSignal;
  readonly onProgress: (what: string) => void;
}

const BLOCK_BYTES = 64;
const SLOT_BYTES = 4_096;
const DEADLINE_MS = 120_000;
/** Pause in milliseconds between writing the blocks and the measurement. */
const SETTLE_MS = 1_000;
const SPARE_BYTES = 64 * 2 ** 20;

/** Stores a tree of blocks in RAM and prunes it by command, several times. */
export async function benchPrune(native: Native, options: PruneBenchOptions) {
  const { blocks, rounds, natsUrl, workerId, signal } = options;
  // The tree's blocks, its root, and the block that is requested all the time.
  const count = blocks + 2;
  const ramBytes = count * SLOT_BYTES + SPARE_BYTES;
  const parts = { natsUrl, workerId, ramBytes, ssdBytes: null, signal };
  await using host = await ControlHost.start(native, { ...parts, blocksMax: count + 1_024 });
  const speeds: number[] = [];
  const loopNs: number[] = [];
  let [stallMs, busyMs, idleMs] = [0, 0, 0];
  for (let round = 1; round <= rounds; round++) {
    await fill(host, options, round);
    await sleep(systemClock, SETTLE_MS, signal);
    const before = loopUsOf(host.agent);
    const pruned = await watched(host, count - 1, () => pruneAll(options));
    loopNs.push(((loopUsOf(host.agent) - before) * 1_000) / blocks);
    const idle = await watched(host, count - 1, () => sleep(systemClock, pruned.result.ms, signal));
    speeds.push((pruned.result.done * 1_000) / pruned.result.ms);
    stallMs = Math.max(stallMs, pruned.longestMs);
    busyMs = Math.max(busyMs, pruned.longestBusyMs);
    idleMs = Math.max(idleMs, idle.longestMs);
  }
  return {
    prune_blocks_per_s: Math.round(median(speeds)),
    /** Median processor time of the agent's event loop per pruned block, in nanoseconds. */
    prune_loop_ns: Math.round(median(loopNs)),
    /**
     * Longest response time, in milliseconds, of requests for a block in RAM while blocks were
     * pruned.
     */
    loop_stall_ms_max: Number(stallMs.toFixed(1)),
    /** Maximum processor time of the agent's event loop during one such request. */
    loop_busy_ms_max: Number(busyMs.toFixed(1)),
    /** Longest response time over the same time without a prune: the delay that the host adds. */
    loop_stall_ms_idle: Number(idleMs.toFixed(1)),
  };
}

async function fill(host: ControlHost, options: PruneBenchOptions, round: number): Promise<void> {
  const { blocks, rounds, onProgress } = options;
  const of = `prune, round ${round} of ${rounds}`;
  await host.store({
    count: blocks + 2,
    parentOf: (block) => (block > blocks ? null : parentInTree(block, blocks)),
    blockBytes: BLOCK_BYTES,
    onProgress: (stored) => onProgress(`${of}: ${stored} of ${blocks} blocks stored`),
  });
  onProgress(of);
}

async function watched<T>(host: ControlHost, block: number, work: () => Promise<T>) {
  const ask = () => host.touch(block);
  await using watch = new LoopWatch(ask, () => loopUsOf(host.agent));
  const result = await work();
  const { longestMs, longestBusyMs } = watch;
  return { result, longestMs, longestBusyMs };
}

/**
 * Prunes all blocks by command. Returns milliseconds by the agent's clock, from the command's
 * arrival to its receipt.
 */
async function pruneAll({ client, workerId, blocks, signal }: PruneBenchOptions) {
  const command = prune(hashOf(0));
  const sent = await client.send(workerId, command, { deadlineMs: DEADLINE_MS, signal });
  if (sent.kind !== "receipt") throw new HearthError("DEADLINE", `prune: ${sent.why}`);
  const { status, counts, elapsed_ms } = sent.receipt;
  if (status === "ok" && counts.done === blocks) return { done: counts.done, ms: elapsed_ms };
  const what = `${status}, ${JSON.stringify(counts)} of ${blocks} blocks`;
  throw new HearthError("INTERNAL", `a prune is not as it should be: ${what}`);
}

/**
 * Length of the chains of the pruned tree. The tree below block 0 has equal parts: one chain,
 * chains of this length, bushes of sixteen branches, and children of the root. Parents are numbered
 * before their children.
 */
const CHAIN = 1_000;
const BRANCHES = 16;

/**
 * Returns the parent of a block in the tree of `below` blocks under block 0; null for block 0
 * itself.
 */
export function parentInTree(block: number, below: number): number | null {
  if (block === 0) return null;
  const part = Math.max(1, Math.floor(below / 4));
  const kind = Math.floor((block - 1) / part);
  const at = (block - 1) % part;
  if (kind === 0) return block - 1;
  if (kind === 1) return at % CHAIN === 0 ? 0 : block - 1;
  if (kind === 2) return at === 0 ? 0 : block - at + Math.floor((at - 1) / BRANCHES);
  return 0;
}
