import { assert, HearthError } from "../../core/index.ts";
import { gpuFinding, probeGpus } from "../../devices/index.ts";
import { isStandInCuda, type Native } from "../../native/index.ts";
import { fileBytesOf } from "../../store/kvb/index.ts";
import { type AgentStatus, PrivateAgent } from "../replay/index.ts";
import { LineProcess } from "./line-process.ts";
import { median } from "./measure.ts";
import { makeBenchFolder } from "./ssd/bench-tier.ts";

export interface TtftBenchOptions extends Omit<TtftPlan, "socket">, TtftDriverOptions {
  /** Folder of the SSD tier; null for no restore from SSD. */
  readonly ssdDir: string | null;
  onProgress(what: string): void;
}

/** Members of the status of an agent with a GPU. */
interface GpuStatus extends Pick<AgentStatus, "arena"> {
  readonly gpu: {
    readonly registered_bytes: number;
    readonly devices: readonly { readonly pageable_copies: number }[];
  };
}

const SETTLE_MS = 600_000;

/**
 * Measures the time to the first token of prompts that are computed, and of prompts whose KV a
 * temporary agent restores. Returns a row for each prompt, with medians of the rounds. Throws
 * UNSUPPORTED without a GPU, or if the Python driver cannot run.
 */
export async function benchTtft(native: Native, options: TtftBenchOptions) {
  const { python: _python, driver: _folder, ssdDir, signal, onProgress, ...plan } = options;
  await mustHaveGpu(native, plan.library);
  onProgress("the driver starts");
  await using driver = new TtftDriver(options);
  await driver.event();
  const needs = needsOf({ socket: "", ...plan });
  using own = ssdDir === null ? null : makeBenchFolder(ssdDir, needs.ssdBytes);
  await using agent = await PrivateAgent.start({
    ramBytes: needs.ramBytes,
    ssdBytes: own === null ? null : needs.ssdBytes,
    ...(own === null ? {} : { ssdDir: own.path }),
    blocksMax: Math.max(65_536, 2 * needs.blocks),
    policy: "lru",
    settings: {
      // Every block must be written to SSD, even if that takes long.
      kv: { ssd_write_queue: `"${needs.ramBytes}B"` },
      engine: { acquire_deadline: '"60s"', lease: '"2m"' },
      gpu: {
        enabled: '"require"',
        ...(plan.library === null ? {} : { library: JSON.stringify(plan.library) }),
      },
    },
    signal,
  });
  await registered(agent, signal);
  driver.send(JSON.stringify({ ...plan, socket: agent.socketPath } satisfies TtftPlan));
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
    // After a restart the agent has all blocks only on SSD.
    driver.send("ssd");
    fromSsd.push(...(await phase(driver, "done", () => undefined)));
  }
  const stand_in = isStandInCuda(plan.library);
  return fromRam.map((one) => {
    const again = fromSsd.filter(({ prompt_tokens }) => prompt_tokens === one.prompt_tokens);
    // `pageable`: copies of the whole run, until SSD was measured, that were not asynchronous.
    return { ...rowOf(one, again), pageable, stand_in };
  });
}

async function mustHaveGpu(native: Native, library: string | null): Promise<void> {
  const { info, devices } = await probeGpus(native, library);
  const named = devices.map((device) => ({ ...device, uuid: new Uint8Array() }));
  const { kind, text, fix } = gpuFinding(info, named);
  if (kind === "usable") return;
  throw new HearthError("UNSUPPORTED", text, fix === null ? {} : { fix });
}

/** Collects the driver's measurements until it reports the end of the phase. */
async function phase(
  driver: TtftDriver,
  end: "stored" | "done",
  onPrompt: (tokens: number) => void,
): Promise<Measured[]> {
  const measured: Measured[] = [];
  while (true) {
    const said = await driver.event();
    if (said.event === end) return measured;
    if (said.event === "ram" || said.event === "ssd") {
      measured.push(said);
      onPrompt(said.prompt_tokens);
    }
  }
}

/** Waits until all blocks are on SSD. */
function settled(agent: PrivateAgent, blocks: number, signal: AbortSignal): Promise<void> {
  return agent.until(SETTLE_MS, "write all blocks to SSD", signal, async () => {
    const { ssd } = await agent.status();
    return ssd?.queued_blocks === 0 && ssd.blocks >= blocks;
  });
}

/**
 * Waits until all of RAM is registered with the CUDA driver; before that, copies are slower and
 * block a thread.
 */
function registered(agent: PrivateAgent, signal: AbortSignal): Promise<void> {
  return agent.until(SETTLE_MS, "register its RAM with the driver", signal, async () => {
    const { gpu, arena } = await agent.get<GpuStatus>("/v1/status");
    return gpu.registered_bytes >= arena.bytes;
  });
}

async function mustBeOnSsd(agent: PrivateAgent, blocks: number): Promise<void> {
  const { ram, ssd } = await agent.status();
  assert(ssd !== null && ssd.blocks >= blocks && ram.blocks === 0, "RAM is empty and SSD is not");
}

function rowOf(one: Measured, again: readonly Measured[]) {
  assert(one.prefill_ms !== undefined, "blocks in RAM were computed before");
  const prefillMs = median(one.prefill_ms);
  const ram = restoredOf([one], prefillMs);
  const ssd = again.length === 0 ? null : restoredOf(again, prefillMs);
  return {
    prompt_tokens: one.prompt_tokens,
    computed_tokens: one.prompt_tokens - one.restored_tokens,
    mib: one.bytes / 2 ** 20,
    prefill_ms: prefillMs,
    ram_ms: ram.ms,
    ram_ratio: ram.ratio,
    ram_gbps: ram.gbps,
    /** A plain copy of pinned memory, in the same run. */
    bare_gbps: one.bare_gbps,
    ram_identical: ram.identical,
    ssd_ms: ssd?.ms ?? null,
    ssd_ratio: ssd?.ratio ?? null,
    ssd_gbps: ssd?.gbps ?? null,
    ssd_identical: ssd?.identical ?? null,
  };
}

/** Restored from one tier. */
function restoredOf(samples: readonly Measured[], prefillMs: number) {
  const ms = median(samples.flatMap(({ restore_ms }) => restore_ms));
  const loadMs = median(samples.flatMap(({ load_ms }) => load_ms));
  return {
    ms,
    /** The time of the prefill over it. */
    ratio: prefillMs / ms,
    /** 10^9 bytes a second from the first request to the last layer. */
    gbps: samples[0].bytes / loadMs / 1e6,
    /** Logits are those of the cache that never left the device, bit by bit, in every sample. */
    identical: samples.every(({ identical }) => identical),
  };
}

/** Shape of a dense transformer with grouped queries and 16 bits per value. */
interface Shape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kv_heads: number;
  readonly head_dim: number;
  readonly intermediate: number;
  readonly vocabulary: number;
}

export const TTFT_SHAPES = {
  "qwen3-14b": {
    layers: 40,
    hidden: 5120,
    heads: 40,
    kv_heads: 8,
    head_dim: 128,
    intermediate: 17_408,
    vocabulary: 151_936,
  },
  tiny: {
    layers: 4,
    hidden: 64,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    intermediate: 128,
    vocabulary: 1_000,
  },
} as const satisfies Record<string, Shape>;
export type TtftShape = keyof typeof TTFT_SHAPES;

/** How the driver computes prompts. `hash` uses no transformer, for a host without PyTorch. */
export const TTFT_COMPUTES = ["torch", "hash"] as const;
/** Prompt lengths in tokens: turns of one conversation, as in the benchmark of pins. */
export const TTFT_PROMPTS: readonly number[] = [3_158, 4_810, 7_347, 10_826, 15_002];

/** Input of the Python driver; the fields equal those of `Plan` in python/hearth_bench/plan.py. */
interface TtftPlan {
  readonly socket: string;
  readonly library: string | null;
  readonly device: string;
  readonly compute: (typeof TTFT_COMPUTES)[number];
  readonly shape: Shape;
  readonly block_tokens: number;
  readonly prompts: readonly number[];
  readonly rounds: number;
  readonly connections: number;
}

/** Minimum number of a prompt's tokens that are computed and not restored. */
const COMPUTED_MIN = 64;
const BYTES_PER_VALUE = 2;
const PAGE = 4096;
const SPARE_BYTES = 2 ** 26;

/** Returns the capacity of an agent that stores every layer of each block of all prompts. */
function needsOf({ shape, block_tokens: tokens, prompts }: TtftPlan): {
  readonly blocks: number;
  readonly ramBytes: number;
  readonly ssdBytes: number;
} {
  const wholeBlocks = prompts.map((count) =>
    Math.floor(Math.max(0, count - COMPUTED_MIN) / tokens),
  );
  const blocks = shape.layers * wholeBlocks.reduce((sum, count) => sum + count, 0);
  const bytes = 2 * tokens * shape.kv_heads * shape.head_dim * BYTES_PER_VALUE;
  return {
    blocks,
    ramBytes: blocks * Math.ceil(bytes / PAGE) * PAGE + SPARE_BYTES,
    ssdBytes: Math.ceil(1.2 * blocks * fileBytesOf(bytes)) + SPARE_BYTES,
  };
}

/** Measurements of one prompt: milliseconds of each sample. */
interface Measured {
  readonly event: "ram" | "ssd";
  readonly prompt_tokens: number;
  readonly restored_tokens: number;
  readonly bytes: number;
  readonly prefill_ms?: readonly number[];
  readonly restore_ms: readonly number[];
  readonly load_ms: readonly number[];
  readonly identical: boolean;
  readonly bare_gbps: number;
}
type DriverEvent = Measured | { readonly event: "started" | "stored" | "done" };

interface TtftDriverOptions {
  /** `python`: path of the interpreter. The next member is the folder of the packages it runs. */
  readonly python: string;
  readonly driver: string;
  readonly compute: TtftPlan["compute"];
  readonly signal: AbortSignal;
}

const WORDS_KEPT = 4_000;

/** The Python process that acts as an engine: python/hearth_bench/ttft.py. */
class TtftDriver extends LineProcess {
  constructor({ python, driver, compute, signal }: TtftDriverOptions) {
    const words = [python, "-m", "hearth_bench.ttft", compute];
    super(words, { env: { PYTHONPATH: driver }, signal, keepsErrors: true });
  }

  /**
   * Returns the driver's next event. Throws UNSUPPORTED with the end of its output if it has
   * exited.
   */
  async event(): Promise<DriverEvent> {
    const event = await this.nextOrEnd();
    if (event !== undefined) return event as DriverEvent;
    const words = (await this.errors).trim().slice(-WORDS_KEPT);
    const last = words.split("\n").at(-1);
    const fix = "give --python one that has PyTorch, or measure with --compute hash";
    const hint = last?.includes("torch") ? { fix } : {};
    throw new HearthError("UNSUPPORTED", `the driver ended: ${last || "without a word"}`, {
      cause: words,
      ...hint,
    });
  }
}
