import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Clock, seededRandom, systemClock } from "../../src/core/index.ts";
import {
  ENGINE_LIMITS,
  EngineClient,
  type EngineLimits,
  EngineServer,
  type EngineServerOptions,
  FrameCounts,
} from "../../src/engine/index.ts";
import { encodeManifest, manifestOf } from "../../src/identity/index.ts";
import { loadNative, type Native, openGpus, Queue, Region } from "../../src/native/index.ts";
import { type BlockStore, type PolicyName, TieredStore } from "../../src/store/index.ts";
import { verifyStore } from "../store/verify-store.ts";
import { waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { Engine } from "./engine.ts";
import { RawEngine } from "./raw-engine.ts";

export interface AgentKitOptions {
  readonly slots?: number;
  readonly limits?: Partial<EngineLimits>;
  readonly clock?: Clock;
  readonly health?: EngineServerOptions["health"];
  readonly gpuWindowBlocks?: number;
  readonly policy?: PolicyName;
  readonly blocksMax?: number;
  /** Path of the socket. Default: in a folder of its own. */
  readonly socketPath?: string;
  readonly socketGroup?: number;
  readonly watches?: number;
  /** MAC keys by identifier. */
  readonly macKeys?: ReadonlyMap<string, Uint8Array>;
  /** Bytes of the arena that are ready. Default: all. */
  readonly readyBytes?: number;
  /** Plan of the CUDA stand-in. Without it the agent has no GPUs. */
  readonly gpuPlan?: string;
  /** How long a device may complete nothing before it is declared lost. */
  readonly giveUpMs?: number;
  /** Wraps the store, to inject faults that a correct store does not have. */
  readonly wrapStore?: (store: BlockStore) => BlockStore;
}

export interface LogLine {
  readonly level: string;
  readonly text: string;
  readonly fields: Record<string, unknown>;
}

/** The engine plane of an agent in this process: a real store behind a real socket. */
export interface AgentKit extends AsyncDisposable {
  readonly socketPath: string;
  readonly server: EngineServer;
  readonly store: TieredStore;
  readonly region: Region;
  readonly frames: FrameCounts;
  readonly logs: LogLine[];
  connect(tenant?: string): Promise<Engine>;
  raw(): Promise<RawEngine>;
  /** As `raw`, after HELLO. */
  rawGreeted(tenant?: string): Promise<RawEngine>;
  /** Throws if a slot is neither free nor a stored block, or if table and slots disagree. */
  expectNothingHeld(): void;
  /** Waits for it within the second that the protocol promises. */
  untilNothingHeld(): Promise<void>;
}

const SLOT_BYTES = 8192;
const FREE_MS = 1_000;
export const BLOCK_TOKENS = 4;

export function manifestBytes(tenant = "test"): Uint8Array {
  return encodeManifest(
    manifestOf({
      model: "test",
      dtype: "bfloat16",
      layout: "test:flat",
      blockTokens: BLOCK_TOKENS,
      tenantSalt: tenant,
    }),
  );
}

/** The agent's GPUs: those of the stand-in, with the whole arena registered. */
async function openGpuBed(options: AgentKitOptions, native: Native, region: Region) {
  const cuda = standIn("libcuda.so.1");
  cuda.configure(options.gpuPlan!);
  const gpus = openGpus(native, {
    region,
    library: cuda.path,
    jobsMax: 256,
    piecesMax: 65_536,
    ...(options.giveUpMs === undefined ? {} : { giveUpMs: options.giveUpMs }),
    onLost: () => undefined,
  });
  if (gpus.info.state === "ready") await gpus.register(0, region.bytes);
  const close = async () => {
    cuda.configure("+release");
    await gpus[Symbol.asyncDispose]();
    const left = Object.entries(cuda.counters()).filter(
      ([name, count]) => /^(open|misuse)\./.test(name) && count !== 0,
    );
    cuda.configure("");
    if (left.length > 0) throw new Error(`left open in the driver: ${JSON.stringify(left)}`);
  };
  return { gpus, close };
}

export async function openAgent(options: AgentKitOptions = {}): Promise<AgentKit> {
  const native = loadNative();
  const clock = options.clock ?? systemClock;
  const bytes = (options.slots ?? 64) * SLOT_BYTES;
  const folder = mkdtempSync(join(tmpdir(), "hearth-"));
  const socketPath = options.socketPath ?? join(folder, "run", "engine.sock");
  const region = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
  const queue = new Queue(native, { entries: 256, threads: 2, watches: options.watches ?? 512 });
  const store = new TieredStore({
    native,
    region,
    queue,
    clock,
    random: seededRandom(11),
    blocksMax: options.blocksMax ?? 4_096,
    gpuWindowBlocks: options.gpuWindowBlocks ?? 64,
    policy: options.policy ?? "lru",
    marks: { high: 1, low: 1 },
    macKeys: options.macKeys ?? new Map(),
  });
  store.slots.addReady(options.readyBytes ?? bytes);
  const frames = new FrameCounts();
  const logs: LogLine[] = [];
  const gpus = options.gpuPlan === undefined ? null : await openGpuBed(options, native, region);
  const server = new EngineServer({
    socketPath,
    socketGroup: options.socketGroup ?? null,
    limits: { ...ENGINE_LIMITS, ...options.limits },
    store: options.wrapStore?.(store) ?? store,
    namespaces: store.namespaces,
    native,
    hashing: native,
    queue,
    clock,
    incarnation: 77n,
    gpus: gpus?.gpus ?? null,
    frames,
    ...(options.health === undefined ? {} : { health: options.health }),
    lookedUp: () => undefined,
    log: (level, text, fields) => logs.push({ level, text, fields: fields ?? {} }),
  });
  const close = async () => {
    await server[Symbol.asyncDispose]();
    await gpus?.close();
    await store[Symbol.asyncDispose]();
    await queue[Symbol.asyncDispose]();
    region[Symbol.dispose]();
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    await server.start();
  } catch (error) {
    await close();
    throw error;
  }
  const expectNothingHeld = () => {
    verifyStore(store);
    const { slotsUsed, slotsQuarantined, ramBlocks } = store.snapshot();
    const left = { ...server.held(), lost: slotsUsed - ramBlocks, slotsQuarantined };
    if (Object.values(left).some((count) => count !== 0)) throw new Error(JSON.stringify(left));
    return true;
  };
  return {
    socketPath,
    server,
    store,
    region,
    frames,
    logs,
    async connect(tenant) {
      const manifest = manifestBytes(tenant);
      return new Engine(await EngineClient.connect(native, { socketPath, manifest, name: "t" }));
    },
    raw: () => RawEngine.open(socketPath),
    async rawGreeted(tenant) {
      const raw = await RawEngine.open(socketPath);
      await raw.hello(manifestBytes(tenant));
      return raw;
    },
    expectNothingHeld,
    async untilNothingHeld() {
      await waitFor(expectNothingHeld, FREE_MS, "everything free");
    },
    [Symbol.asyncDispose]: close,
  };
}
