import { type Clock, HearthError, systemClock } from "../../../core/index.ts";
import { type Native, Region } from "../../../native/index.ts";
import { createTrust, type PeerLink, QuicTransport } from "../../../peers/index.ts";
import { median } from "../quantiles.ts";
import { BENCH_NAMESPACE, BenchServer, benchBlock } from "./bench-server.ts";
import { benchCluster } from "./carrier-pair.ts";
import { HOLDER } from "./transport-side.ts";
import { UdpRelay } from "./udp-relay.ts";

const HOST = "127.0.0.1";
const REGION_BYTES = 4 * 2 ** 20;
const PULL_MS = 10_000;

/** From the dial to the first byte of a block, in milliseconds. */
export interface Resumption {
  /** Put in by the relay, there and back. */
  readonly roundTripMs: number;
  readonly firstMs: number;
  /** Shortly after the first connection was closed. */
  readonly againMs: number;
  /** The second one began with the first one's ticket. */
  readonly resumed: boolean;
}

/** Two connections by QUIC, one after the other, over a wire that takes `delayMs` each way. */
export async function measureResumption(
  native: Native,
  options: { readonly delayMs: number; readonly blockBytes: number },
): Promise<Resumption> {
  const clock = systemClock;
  const credentials = benchCluster();
  const open = async (role: "holder" | "asker") => {
    const trust = createTrust(credentials[role], clock);
    const transport = new QuicTransport({ native, clock, trust, log: () => {} });
    const bytes = REGION_BYTES;
    const region = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
    await transport.register(region);
    return { transport, region };
  };
  const { transport: holder, region: held } = await open("holder");
  await using _holder = holder;
  const { transport: asker } = await open("asker");
  await using _asker = asker;
  const server = new BenchServer(held);
  server.setBlockBytes(options.blockBytes);
  const { port } = await holder.listen({ host: HOST, port: 0 }, server);
  using relay = await UdpRelay.open({ port, delayMs: options.delayMs, clock });
  const target = { host: HOST, port: relay.port, worker: HOLDER };
  const connect = async () => {
    const startMs = clock.monotonicMs();
    const dialled = await asker.dial(target, new AbortController().signal);
    if (!dialled.ok) throw new HearthError("INTERNAL", `no link: ${dialled.fault.why}`);
    await using link = dialled.connection;
    const ms = (await firstByteMs(link, options.blockBytes, clock)) - startMs;
    return { ms, resumed: link.resumed };
  };
  const first = await connect();
  const again = await connect();
  const { resumed, ms: againMs } = again;
  return { roundTripMs: 2 * options.delayMs, firstMs: first.ms, againMs, resumed };
}

/** When the first byte of a block had come, on the monotonic clock. */
async function firstByteMs(link: PeerLink, bytesMax: number, clock: Clock): Promise<number> {
  let atMs: number | null = null;
  const fault = await link.pull({
    namespace: BENCH_NAMESPACE,
    items: [{ ...benchBlock(0), bytesMax, generation: 0n, offset: 0 }],
    deadlineMs: PULL_MS,
    signal: new AbortController().signal,
    onBytes() {
      atMs ??= clock.monotonicMs();
    },
    onItem() {},
  });
  if (fault !== null || atMs === null) {
    throw new HearthError("INTERNAL", `a pull failed: ${fault?.why ?? "nothing came"}`);
  }
  return atMs;
}

export interface ResumptionRow {
  readonly transport: "quic";
  readonly round_trip_ms: number;
  readonly first_ms: number;
  readonly again_ms: number;
  /** Round trips that the first byte of the second connection took. */
  readonly again_round_trips: number;
  /** Second connections that began with a ticket, of `times`. */
  readonly resumed: number;
  readonly times: number;
}

/** Medians of several. */
export async function benchResumption(
  native: Native,
  options: { readonly delayMs: number; readonly blockBytes: number; readonly times: number },
): Promise<ResumptionRow> {
  const measured: Resumption[] = [];
  while (measured.length < options.times) measured.push(await measureResumption(native, options));
  const again = median(measured.map(({ againMs }) => againMs));
  const roundTripMs = 2 * options.delayMs;
  return {
    transport: "quic",
    round_trip_ms: roundTripMs,
    first_ms: median(measured.map(({ firstMs }) => firstMs)),
    again_ms: again,
    again_round_trips: again / roundTripMs,
    resumed: measured.filter(({ resumed }) => resumed).length,
    times: options.times,
  };
}
