import type { Native } from "../../native/index.ts";
import { openEcho } from "./echo.ts";
import { connectEngineProbe, type EngineProbe } from "./engine-probe.ts";
import { median, quantile } from "./quantiles.ts";

export interface EngineBenchOptions {
  readonly enginePath: string;
  readonly echoPath: string;
  readonly blockBytes: number;
  /** Passes over each throughput, interleaved; medians are reported. */
  readonly rounds: number;
  /** Round trips of each latency. */
  readonly samples: number;
  /** Measure copies with MACs, too, in a namespace with a key. */
  readonly mac?: boolean;
  readonly onProgress?: (text: string) => void;
}

/** Latencies in microseconds, rates in 10^9 bytes a second. */
export interface EngineBenchResult {
  readonly block_bytes: number;
  /**
   * A frame's worth of bytes there and back between the same two processes, without the protocol.
   */
  readonly echo_rtt_us: number;
  /** Copies between private buffers, as many bytes and as large pieces as in `copy_out_gbps`. */
  readonly memcpy_gbps: number;
  /** Acquire and release of one resident block. */
  readonly acquire_1m_p50_us: number;
  readonly acquire_64_p50_us: number;
  readonly acquire_64_p99_us: number;
  readonly match_64_p50_us: number;
  /** Acquire, copy out of the arena, release. */
  readonly copy_out_gbps: number;
  /** The same, with the checksum of the copy compared. */
  readonly copy_out_verified_gbps: number;
  /** Reserve, copy into the arena with its checksum, commit verified by the agent. */
  readonly put_gbps: number;
  /** Acquires and releases of one block a second, 32 on the way at a time. */
  readonly ops_per_s: number;
  /** As `copy_out_verified_gbps`, each copy verified by its MAC instead. With `mac` only. */
  readonly copy_out_mac_gbps?: number;
  /** As `put_gbps`, with the MAC beside the checksum. With `mac` only. */
  readonly put_mac_gbps?: number;
  /** `copy_out_mac_gbps` over `copy_out_verified_gbps`: the median of each round's ratio. */
  readonly mac_ratio?: number;
}

const WARM_UP = 200;
const PIPELINE = 32;
const OPS_BATCHES = 400;

/** Measures the engine plane as a client of an agent in another process. */
export async function benchEngine(
  native: Native,
  options: EngineBenchOptions,
): Promise<EngineBenchResult> {
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
    echo_rtt_us: us(median(echo)),
    memcpy_gbps: gbps(rates.memcpy),
    acquire_1m_p50_us: us(median(one)),
    acquire_64_p50_us: us(median(many)),
    acquire_64_p99_us: us(quantile(many, 0.99)),
    match_64_p50_us: us(median(match)),
    copy_out_gbps: gbps(rates.copyOut),
    copy_out_verified_gbps: gbps(rates.verified),
    put_gbps: gbps(rates.put),
    ops_per_s: Math.round(opsPerS),
    ...(keyed === null ? {} : ratesOfMacs(rates)),
  };
}

function ratesOfMacs({ verified, mac, putMac }: Rates) {
  const ratios = mac.map((rate, round) => rate / verified[round]!);
  return { copy_out_mac_gbps: gbps(mac), put_mac_gbps: gbps(putMac), mac_ratio: gbps(ratios) };
}

const us = (ns: number) => Number((ns / 1_000).toFixed(1));
const gbps = (values: number[]) => Number(median(values).toFixed(3));

/**
 * An echo, an acquire, an echo: as the scheduler puts the two processes on one core or on two, a
 * round trip takes 6 us or 50. Taken in turn, both see the same.
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

/** Nanoseconds of each of `count` runs, after a warm-up. */
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

/** All rates in turn, round after round, so that a slow moment of the host hits all of them. */
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
    // The first round touches every page for the first time.
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
