import { join } from "node:path";
import type { UnixSocketListener } from "bun";
import {
  assert,
  DIGEST_BYTES,
  HearthError,
  LAYER_ALL,
  selfCommand,
  systemClock,
} from "../../core/index.ts";
import {
  ENGINE_LIMITS,
  EngineClient,
  EngineServer,
  FrameCounts,
  Outcome,
} from "../../engine/index.ts";
import { encodeManifest, namespaceSecret, withMacKey } from "../../identity/index.ts";
import {
  BlockMacs,
  MAC_BYTES,
  type MacBlock,
  type Native,
  nativeBuffer,
} from "../../native/index.ts";
import {
  type AddressBatch,
  CommitFlag,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
  Namespaces,
} from "../../store/index.ts";
import { BENCH_MANIFEST, createBenchStore } from "./bench-store.ts";
import { startServer } from "./line-process.ts";
import { median, quantile } from "./measure.ts";

export interface EngineBenchOptions {
  readonly enginePath: string;
  readonly echoPath: string;
  readonly blockBytes: number;
  /**
   * Number of passes, each of which runs every throughput measurement; the medians are reported.
   */
  readonly rounds: number;
  /** Number of round trips of each latency measurement. */
  readonly samples: number;
  /**
   * Also measure copies with message authentication codes (MACs), in a namespace that has a key.
   */
  readonly mac?: boolean;
  readonly onProgress?: (text: string) => void;
}

const WARM_UP = 200;
const PIPELINE = 32;
const OPS_BATCHES = 400;

/** Measures the engine interface as a client of an agent in another process. */
export async function benchEngine(native: Native, options: EngineBenchOptions) {
  const { enginePath, echoPath, samples, rounds, blockBytes } = options;
  const say = options.onProgress ?? (() => undefined);
  const { client, probe } = await connectEngineProbe(native, {
    socketPath: enginePath,
    blockBytes,
  });
  await using _client = client;
  const macs = options.mac === true ? { socketPath: enginePath, blockBytes, hasMacs: true } : null;
  const keyed = macs === null ? null : await connectEngineProbe(native, macs);
  await using _keyedClient = keyed?.client;
  say("writing blocks");
  await probe.fillResident();
  await keyed?.probe.fillResident();
  say("latencies");
  const { echo, one } = await besideEcho(echoPath, probe, samples);
  const many = await timed(samples, () => probe.acquireRelease(64));
  const match = await timed(samples, () => probe.match(64));
  say("operations");
  const opsPerS = await operationsPerSecond(probe);
  const rates = await throughputs(probe, keyed?.probe ?? null, rounds, say);
  return {
    block_bytes: blockBytes,
    /**
     * Round trip of the bytes of one frame between the same two processes, without the protocol;
     * microseconds.
     */
    echo_rtt_us: us(median(echo)),
    /**
     * Copies between private buffers, with the same total bytes and piece size as `copy_out_gbps`.
     */
    memcpy_gbps: gbps(rates.memcpy),
    /** Acquire and release of one resident block of 1 MiB. */
    acquire_1m_p50_us: us(median(one)),
    acquire_64_p50_us: us(median(many)),
    acquire_64_p99_us: us(quantile(many, 0.99)),
    match_64_p50_us: us(median(match)),
    /** Acquire, copy out of the arena, and release. */
    copy_out_gbps: gbps(rates.copyOut),
    /** Like `copy_out_gbps`, and compares the checksum of each copy. */
    copy_out_verified_gbps: gbps(rates.verified),
    /**
     * Reserve, copy into the arena with a checksum, and commit; the agent verifies the checksum.
     */
    put_gbps: gbps(rates.put),
    /** Acquire-and-release pairs per second, with 32 in flight. */
    ops_per_s: Math.round(opsPerS),
    ...(keyed === null ? {} : ratesOfMacs(rates)),
  };
}

function ratesOfMacs({ verified, mac, putMac }: Rates) {
  const ratios = mac.map((rate, round) => rate / verified[round]);
  return { copy_out_mac_gbps: gbps(mac), put_mac_gbps: gbps(putMac), mac_ratio: gbps(ratios) };
}

const us = (ns: number) => Number((ns / 1_000).toFixed(1));
const gbps = (values: number[]) => Number(median(values).toFixed(3));

/**
 * Measures echoes and acquires alternately. A round trip takes 6 us or 50 us, depending on whether
 * the scheduler runs the two processes on one core or on two.
 */
async function besideEcho(path: string, probe: EngineProbe, samples: number) {
  using line = await openEcho(path);
  const echo: number[] = [];
  const one: number[] = [];
  for (let i = -WARM_UP; i < samples; i++) {
    const echoNs = await line.roundTrip();
    const start = Bun.nanoseconds();
    await probe.acquireRelease(1);
    const oneNs = Bun.nanoseconds() - start;
    if (i < 0) continue;
    echo.push(echoNs);
    one.push(oneNs);
  }
  return { echo, one };
}

/** Runs `run` `count` times after a warm-up and returns the nanoseconds of each run. */
async function timed(count: number, run: () => Promise<void>, warmUp = WARM_UP): Promise<number[]> {
  for (let i = 0; i < warmUp; i++) await run();
  const ns: number[] = [];
  for (let i = 0; i < count; i++) {
    const start = Bun.nanoseconds();
    await run();
    ns.push(Bun.nanoseconds() - start);
  }
  return ns;
}

async function operationsPerSecond(probe: EngineProbe): Promise<number> {
  await probe.pipelined(PIPELINE);
  const start = Bun.nanoseconds();
  for (let i = 0; i < OPS_BATCHES; i++) await probe.pipelined(PIPELINE);
  return (OPS_BATCHES * PIPELINE * 1e9) / (Bun.nanoseconds() - start);
}

type Rates = Record<"memcpy" | "copyOut" | "verified" | "put" | "mac" | "putMac", number[]>;

/**
 * Measures all throughputs in turn, pass by pass, so that a slow phase of the host affects all of
 * them.
 */
async function throughputs(
  probe: EngineProbe,
  keyed: EngineProbe | null,
  rounds: number,
  say: (text: string) => void,
): Promise<Rates> {
  const rates: Rates = { memcpy: [], copyOut: [], verified: [], put: [], mac: [], putMac: [] };
  const rate = async (run: () => number | Promise<number>) => {
    const start = Bun.nanoseconds();
    const bytes = await run();
    return bytes / (Bun.nanoseconds() - start);
  };
  for (let round = 0; round <= rounds; round++) {
    say(`throughput, round ${round} of ${rounds}`);
    const memcpy = await rate(() => probe.copyPrivate());
    const copyOut = await rate(() => probe.copyOut(false));
    const verified = await rate(() => probe.copyOut(true));
    const mac = keyed === null ? 0 : await rate(() => keyed.copyOut(true));
    const put = await rate(() => probe.put());
    const putMac = keyed === null ? 0 : await rate(() => keyed.put());
    // The first pass causes page faults, so it does not count.
    if (round === 0) continue;
    rates.memcpy.push(memcpy);
    rates.copyOut.push(copyOut);
    rates.verified.push(verified);
    rates.mac.push(mac);
    rates.put.push(put);
    rates.putMac.push(putMac);
  }
  return rates;
}

/**
 * Number of blocks in the arena: room for the resident blocks and for blocks written with and
 * without a key.
 */
const ARENA_BLOCKS = 512;
const TABLE_BLOCKS = 65_536;

interface BenchServerOptions {
  readonly folder: string;
  readonly blockBytes: number;
  readonly signal: AbortSignal;
}

function pathsIn(folder: string) {
  return {
    enginePath: join(folder, "engine.sock"),
    echoPath: join(folder, "echo.sock"),
    readyPath: join(folder, "ready"),
  };
}

/**
 * Runs the agent's side of the engine benchmark: a RAM store behind its socket, and an echo server
 * beside it.
 */
export async function serveEngineBench(native: Native, options: BenchServerOptions): Promise<void> {
  const paths = pathsIn(options.folder);
  const bytes = ARENA_BLOCKS * Math.ceil(options.blockBytes / 4096) * 4096;
  const parts = createBenchStore({
    ...{ native, bytes, threads: 1, watches: 64, blocksMax: TABLE_BLOCKS },
    marks: { high: 0.95, low: 0.9 },
  });
  await using queue = parts.queue;
  await using store = parts.store;
  await parts.grow();
  store.evictor.start(1_000);
  await using engine = new EngineServer({
    socketPath: paths.enginePath,
    socketGroup: null,
    limits: ENGINE_LIMITS,
    store,
    namespaces: new Namespaces(),
    native,
    hashing: native,
    queue,
    clock: systemClock,
    incarnation: 1n,
    frames: new FrameCounts(),
    lookedUp: () => undefined,
    log: () => undefined,
  });
  await engine.start();
  const echo = listenEcho(paths.echoPath);
  await Bun.write(paths.readyPath, "ready");
  await until(options.signal);
  echo.stop(true);
}

function until(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** Starts `serveEngineBench` in another process of this same program. */
export async function startBenchServer(options: BenchServerOptions) {
  const { folder, blockBytes, signal } = options;
  const paths = pathsIn(folder);
  const words = ["bench", "engine", "--serve", folder, "--block-bytes", `${blockBytes}B`];
  const server = await startServer([...selfCommand(), ...words], {
    ready: paths.readyPath,
    stopBy: "SIGTERM",
    signal,
  });
  return { paths, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

/** Default number of resident blocks to read. */
const RESIDENT = 64;
/** Number of blocks per call in the throughput runs. */
const AT_ONCE = 64;
/** Number of blocks written per call: the agent verifies one batch while the next is copied. */
const WRITTEN_AT_ONCE = 16;
/** Number of blocks moved by one throughput run, more than any cache holds. */
const MOVED = 128;
const NOISE_BYTES = 65_536;

/** Operations of the engine benchmark. Throughput runs return the bytes they moved. */
export type EngineProbe = ReturnType<typeof createEngineProbe>;

interface EngineProbeOptions {
  readonly socketPath: string;
  readonly blockBytes: number;
  /** Number of blocks to keep resident. */
  readonly resident?: number;
  /** The namespace of the blocks has a key, so each copy also computes the block's MAC. */
  readonly hasMacs?: boolean;
}

/** Connects to the benchmark's server; closing the client ends the probe. */
export async function connectEngineProbe(native: Native, options: EngineProbeOptions) {
  const { socketPath, hasMacs = false } = options;
  const secret = namespaceSecret(native, crypto.getRandomValues(new Uint8Array(32)));
  const manifest = hasMacs ? withMacKey(BENCH_MANIFEST, secret.id) : BENCH_MANIFEST;
  const client = await EngineClient.connect(native, {
    ...{ socketPath, hasMacs, name: "bench" },
    manifest: encodeManifest(manifest),
  });
  const macs = hasMacs ? new BlockMacs(native, secret.key) : null;
  return { client, probe: createEngineProbe(native, client, options, macs) };
}

function macAt({ mac }: HandleBatch, i: number): Uint8Array {
  return mac.subarray(i * MAC_BYTES, (i + 1) * MAC_BYTES);
}

function createEngineProbe(
  native: Native,
  client: EngineClient,
  { blockBytes, resident = RESIDENT }: EngineProbeOptions,
  macs: BlockMacs | null,
) {
  const { arena } = client;
  const space = client.hello.namespaceId;
  const blocks = createAddressBatch(AT_ONCE);
  const handles = createHandleBatch(AT_ONCE);
  /** Two batches of writes, used in turn: the agent verifies one while the next is copied. */
  const writes = [createHandleBatch(AT_ONCE), createHandleBatch(AT_ONCE)] as const;
  const best = new Uint8Array(AT_ONCE);
  const single = Array.from({ length: 64 }, () => createHandleBatch(1));
  // Copies read memory that is not cached and write to one reused buffer, as an engine's staging
  // buffer is.
  const target = nativeBuffer(blockBytes);
  const privateSource = nativeBuffer(RESIDENT * blockBytes);
  // Write every page, because untouched pages share one zero page and are copied at cache speed.
  const noise = crypto.getRandomValues(new Uint8Array(NOISE_BYTES));
  for (let at = 0; at < privateSource.bytes.length; at += NOISE_BYTES) {
    privateSource.bytes.set(noise.subarray(0, privateSource.bytes.length - at), at);
  }
  const acquireAll = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
  let nextId = 0;

  /** Sets the addresses of blocks [first, first + count). The same numbers give the same blocks. */
  function name(into: AddressBatch, first: number, count: number): void {
    const ids = new Uint32Array(count * 2);
    for (let i = 0; i < count; i++) ids[i * 2] = first + i;
    native.chainDigests(space, new Uint8Array(ids.buffer), 8, into.digests);
    into.layer = LAYER_ALL;
    into.count = count;
    into.bytes.fill(blockBytes, 0, count);
    into.parents.fill(0, 0, count * DIGEST_BYTES);
  }

  /**
   * Reserves slots for the blocks in `blocks` and copies their bytes. The commit is still in
   * progress when it returns.
   */
  async function writeNamed(written: HandleBatch): Promise<{ committed: Promise<void> }> {
    await client.reserve(blocks, 0n, handles);
    written.count = 0;
    for (let i = 0; i < handles.count; i++) {
      if (handles.outcome[i] !== Outcome.ok) continue;
      const next = written.count++;
      written.slot[next] = handles.slot[i];
      written.generation[next] = handles.generation[i];
      const source = {
        bytes: privateSource.bytes,
        address: privateSource.address + i * blockBytes,
      };
      written.flags[next] = CommitFlag.checksumGiven | (macs === null ? 0 : CommitFlag.macGiven);
      written.checksum[next] =
        macs === null
          ? arena.copyIn(handles.offset[i], source, blockBytes, true)
          : macs.copyIn(blockAt(i), source, macAt(written, next));
    }
    return { committed: client.commit(written) };
  }

  /** Returns block `i` of `blocks`, in the slot that `handles` names. */
  function blockAt(i: number): MacBlock {
    const digest = blocks.digests.subarray(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES);
    const offset = handles.offset[i];
    return { region: arena, offset, bytes: blockBytes, digest, layer: LAYER_ALL };
  }

  /** Copies block `i` out. Returns false if the copy differs from the written bytes. */
  function copyOne(i: number, verified: boolean): boolean {
    if (verified && macs !== null) return macs.copyOut(blockAt(i), target, macAt(handles, i));
    const sum = arena.copyOut(handles.offset[i], target, blockBytes, verified);
    return !verified || sum === handles.checksum[i];
  }

  function allAcquired(got: HandleBatch): void {
    for (let i = 0; i < got.count; i++) {
      if (got.outcome[i] === Outcome.ok) continue;
      throw new HearthError("LIMIT", "a resident block went while it was measured", {
        fix: "give the benchmark a larger arena",
      });
    }
  }

  /** Acquires, copies out and releases blocks [first, first + count). */
  async function copyBatch(first: number, count: number, verified: boolean): Promise<void> {
    name(blocks, first, count);
    await client.acquire(blocks, acquireAll, handles);
    allAcquired(handles);
    for (let i = 0; i < count; i++) {
      assert(copyOne(i, verified), "a block is read as it was written");
    }
    client.release(handles);
  }

  return {
    async fillResident() {
      for (let at = 0; at < resident; at += AT_ONCE) {
        name(blocks, at, Math.min(AT_ONCE, resident - at));
        await (await writeNamed(writes[0])).committed;
        assert(writes[0].count === blocks.count, "the arena of a benchmark is empty at first");
      }
      nextId = resident;
    },
    async acquireRelease(count: number) {
      blocks.count = count;
      await client.acquire(blocks, acquireAll, handles);
      client.release(handles);
    },
    async match(count: number) {
      blocks.count = count;
      await client.match(blocks, 0, best);
    },
    /** Keeps several acquires of one block in flight; each block is released on arrival. */
    async pipelined(count: number) {
      blocks.count = 1;
      const acquires = single.slice(0, count).map(async (handle) => {
        await client.acquire(blocks, acquireAll, handle);
        client.release(handle);
      });
      await Promise.all(acquires);
    },
    copyPrivate() {
      for (let i = 0; i < MOVED; i++) {
        const at = (i % RESIDENT) * blockBytes;
        target.bytes.set(privateSource.bytes.subarray(at, at + blockBytes), 0);
      }
      return MOVED * blockBytes;
    },
    async copyOut(verified: boolean) {
      for (let at = 0; at < MOVED; at += AT_ONCE) {
        await copyBatch(at % RESIDENT, AT_ONCE, verified);
      }
      return MOVED * blockBytes;
    },
    /** The first `count` resident blocks, each once. */
    async copyOutOnce(count: number) {
      for (let at = 0; at < count; at += AT_ONCE) {
        await copyBatch(at, Math.min(AT_ONCE, count - at), false);
      }
      return count * blockBytes;
    },
    async put() {
      let count = 0;
      let before: Promise<void> = Promise.resolve();
      for (let at = 0; at < MOVED; at += WRITTEN_AT_ONCE) {
        name(blocks, nextId, WRITTEN_AT_ONCE);
        nextId += WRITTEN_AT_ONCE;
        const written = writes[(at / WRITTEN_AT_ONCE) % 2 === 0 ? 0 : 1];
        const { committed } = await writeNamed(written);
        await before;
        before = committed;
        count += written.count;
      }
      await before;
      return count * blockBytes;
    },
  };
}

/** Bytes of a message of the echo, as many as the frame that acquires one block has. */
const MESSAGE_BYTES = 64;

/**
 * Listens and echoes all input: the shortest possible round trip between two processes over a
 * socket.
 */
function listenEcho(path: string): UnixSocketListener<undefined> {
  return Bun.listen({
    unix: path,
    socket: {
      data(socket, chunk) {
        socket.write(chunk);
      },
    },
  });
}

/** One end of an echo. */
async function openEcho(path: string) {
  let answered: () => void = () => undefined;
  let missing = 0;
  const socket = await Bun.connect({
    unix: path,
    socket: {
      data(_socket, chunk) {
        missing -= chunk.length;
        if (missing <= 0) answered();
      },
    },
  });
  const message = new Uint8Array(MESSAGE_BYTES);
  return {
    /** Nanoseconds of one round trip. */
    async roundTrip() {
      missing = MESSAGE_BYTES;
      const start = Bun.nanoseconds();
      const answer = new Promise<void>((resolve) => {
        answered = resolve;
      });
      socket.write(message);
      await answer;
      return Bun.nanoseconds() - start;
    },
    [Symbol.dispose]: () => void socket.end(),
  };
}
