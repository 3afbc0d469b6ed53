import { assert, HearthError, sleep, systemClock } from "../../../core/index.ts";
import { gpuFinding, probeGpus } from "../../../devices/index.ts";
import { isStandInCuda, type Native } from "../../../native/index.ts";
import { type AgentStatus, PrivateAgent } from "../../replay/index.ts";
import { median } from "../quantiles.ts";
import { makeBenchFolder } from "../ssd/index.ts";
import { type Measured, TtftDriver, type TtftDriverOptions } from "./ttft-driver.ts";
import { needsOf, type TtftPlan } from "./ttft-plan.ts";

export interface TtftBenchOptions extends Omit<TtftPlan, "socket">, TtftDriverOptions {
  /** Null: nothing is measured from SSD. */
  readonly ssdDir: string | null;
  onProgress(what: string): void;
}

/** Restored from one tier. */
export interface Restored {
  readonly ms: number;
  /** The time of the prefill over it. */
  readonly ratio: number;
  /** 10^9 bytes a second from the first request to the last layer. */
  readonly gbps: number;
  /** Logits are those of the cache that never left the device, bit by bit, in every sample. */
  readonly identical: boolean;
}

export interface TtftRow {
  readonly promptTokens: number;
  readonly restoredTokens: number;
  readonly bytes: number;
  readonly prefillMs: number;
  readonly ram: Restored;
  /** A plain copy of pinned memory, in the same run. */
  readonly bareGbps: number;
  readonly ssd: Restored | null;
  /** Copies of the whole run, until SSD was measured, that were not asynchronous. */
  readonly pageable: number;
  readonly isStandIn: boolean;
}

/** Of what an agent with a GPU says. */
interface GpuStatus extends Pick<AgentStatus, "arena"> {
  readonly gpu: {
    readonly registered_bytes: number;
    readonly devices: readonly { readonly pageable_copies: number }[];
  };
}

const SETTLE_MS = 600_000;
const POLL_MS = 20;

/**
 * A row for each prompt, medians of the rounds: the time to the first token of a prompt that is
 * computed, and of one whose keys and values an agent of the benchmark's own brings back. Throws
 * UNSUPPORTED without a GPU, or where the driver cannot run.
 */
export async function benchTtft(native: Native, options: TtftBenchOptions): Promise<TtftRow[]> {
  const { python: _python, driver: _folder, ssdDir, signal, onProgress, ...plan } = options;
  await mustHaveGpu(native, plan.library);
  onProgress("the driver starts");
  await using driver = new TtftDriver(options);
  await driver.next();
  const needs = needsOf({ socket: "", ...plan });
  using own = ssdDir === null ? null : makeBenchFolder(ssdDir, needs.ssdBytes);
  await using agent = await PrivateAgent.start({
    ramBytes: needs.ramBytes,
    ssdBytes: own === null ? null : needs.ssdBytes,
    ...(own === null ? {} : { ssdDir: own.path }),
    blocksMax: Math.max(65_536, 2 * needs.blocks),
    policy: "lru",
    settings: {
      // Nothing is late here, and every block is written.
      kv: { ssd_read_deadline: '"60s"', ssd_write_queue: `"${needs.ramBytes}B"` },
      gpu: {
        enabled: '"require"',
        ...(plan.library === null ? {} : { library: JSON.stringify(plan.library) }),
      },
    },
    signal,
  });
  await registered(agent, signal);
  driver.begin({ ...plan, socket: agent.socketPath });
  const fromRam = await phase(driver, "stored", (at) => onProgress(`${at} tokens from RAM`));
  const { gpu } = await agent.get<GpuStatus>("/v1/status");
  const pageable = gpu.devices.reduce((sum, { pageable_copies: count }) => sum + count, 0);
  const fromSsd: Measured[] = [];
  for (let round = 0; own !== null && round < plan.rounds; round++) {
    onProgress(`round ${round + 1} from SSD`);
    await settled(agent, needs.blocks, signal);
    await agent.restart("SIGTERM", signal);
    await mustBeOnSsd(agent, needs.blocks);
    await registered(agent, signal);
    driver.beginAnew();
    fromSsd.push(...(await phase(driver, "done", () => undefined)));
  }
  const isStandIn = isStandInCuda(plan.library);
  return fromRam.map((one) => {
    const again = fromSsd.filter(({ prompt_tokens }) => prompt_tokens === one.prompt_tokens);
    return { ...rowOf(one, again), pageable, isStandIn };
  });
}

async function mustHaveGpu(native: Native, library: string | null): Promise<void> {
  const { info, devices } = await probeGpus(native, library);
  const named = devices.map((device) => ({ ...device, uuid: new Uint8Array() }));
  const { kind, text, fix } = gpuFinding(info, named);
  if (kind === "usable") return;
  throw new HearthError("UNSUPPORTED", text, fix === null ? {} : { fix });
}

/** What the driver measures until it says that it is through. */
async function phase(
  driver: TtftDriver,
  end: "stored" | "done",
  onPrompt: (tokens: number) => void,
): Promise<Measured[]> {
  const measured: Measured[] = [];
  while (true) {
    const said = await driver.next();
    if (said.event === end) return measured;
    if (said.event === "ram" || said.event === "ssd") {
      measured.push(said);
      onPrompt(said.prompt_tokens);
    }
  }
}

/** Everything is on SSD. */
function settled(agent: PrivateAgent, blocks: number, signal: AbortSignal): Promise<void> {
  return until("write all blocks to SSD", signal, async () => {
    const { ssd } = await agent.status();
    return ssd?.queued_blocks === 0 && ssd.blocks >= blocks;
  });
}

/** All of RAM is known to the driver: until then copies are slower, and block a thread. */
function registered(agent: PrivateAgent, signal: AbortSignal): Promise<void> {
  return until("register its RAM with the driver", signal, async () => {
    const { gpu, arena } = await agent.get<GpuStatus>("/v1/status");
    return gpu.registered_bytes >= arena.bytes;
  });
}

async function until(
  what: string,
  signal: AbortSignal,
  holds: () => Promise<boolean>,
): Promise<void> {
  const deadline = systemClock.monotonicMs() + SETTLE_MS;
  while (!(await holds())) {
    if (systemClock.monotonicMs() > deadline) {
      throw new HearthError("DEADLINE", `the agent did not ${what}`);
    }
    await sleep(systemClock, POLL_MS, signal);
  }
}

async function mustBeOnSsd(agent: PrivateAgent, blocks: number): Promise<void> {
  const { ram, ssd } = await agent.status();
  assert(ssd !== null && ssd.blocks >= blocks && ram.blocks === 0, "RAM is empty and SSD is not");
}

function rowOf(one: Measured, again: readonly Measured[]): Omit<TtftRow, "pageable" | "isStandIn"> {
  assert(one.prefill_ms !== undefined, "what is in RAM was computed before");
  const prefillMs = median(one.prefill_ms);
  return {
    promptTokens: one.prompt_tokens,
    restoredTokens: one.restored_tokens,
    bytes: one.bytes,
    prefillMs,
    ram: restoredOf([one], prefillMs),
    bareGbps: one.bare_gbps,
    ssd: again.length === 0 ? null : restoredOf(again, prefillMs),
  };
}

function restoredOf(samples: readonly Measured[], prefillMs: number): Restored {
  const ms = median(samples.flatMap(({ restore_ms }) => restore_ms));
  const loadMs = median(samples.flatMap(({ load_ms }) => load_ms));
  return {
    ms,
    ratio: prefillMs / ms,
    gbps: samples[0]!.bytes / loadMs / 1e6,
    identical: samples.every(({ identical }) => identical),
  };
}
