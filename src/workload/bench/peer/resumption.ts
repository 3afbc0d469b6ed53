import { type Clock, HearthError, systemClock } from "../../../core/index.ts";
import { type Native, Region } from "../../../native/index.ts";
import { createTrust, type PeerConnection, QuicTransport } from "../../../peers/index.ts";
import { median } from "../measure.ts";
import { benchCluster } from "./peer-bench.ts";
import { BENCH_NAMESPACE, BenchServer, benchBlock, SERVER } from "./peer-child.ts";

const HOST = "127.0.0.1";

const REGION_BYTES = 4 * 2 ** 20;

const PULL_MS = 10_000;

/** Milliseconds from dialling a connection to the first byte of a block. */
interface Resumption {
  /** Round-trip time that the relay adds, in milliseconds. */
  readonly roundTripMs: number;
  readonly firstMs: number;
  /** Time for a second connection, shortly after the first one was closed. */
  readonly againMs: number;
  /** True if the second connection resumed with the ticket of the first. */
  readonly resumed: boolean;
}

/**
 * Makes two QUIC connections, one after the other, through a relay that delays each datagram by
 * `delayMs`.
 */
export async function measureResumption(
  native: Native,
  options: { readonly delayMs: number; readonly blockBytes: number },
): Promise<Resumption> {
  const clock = systemClock;
  const credentials = benchCluster();
  const open = async (role: "server" | "client") => {
    const trust = createTrust(credentials[role], clock);
    const transport = new QuicTransport({ native, clock, trust, log: () => {} });
    const bytes = REGION_BYTES;
    const region = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
    await transport.register(region);
    return { transport, region };
  };
  const { transport: listening, region } = await open("server");
  await using _listening = listening;
  const { transport: client } = await open("client");
  await using _client = client;
  const server = new BenchServer(region);
  server.setBlockBytes(options.blockBytes);
  const { port } = await listening.listen({ host: HOST, port: 0 }, server);
  using relay = await UdpRelay.open({ port, delayMs: options.delayMs, clock });
  const target = { host: HOST, port: relay.port, worker: SERVER };
  const connect = async () => {
    const startMs = clock.monotonicMs();
    const dialled = await client.dial(target, new AbortController().signal);
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

/** Pulls a block and returns the time of its first byte on the monotonic clock, in milliseconds. */
async function firstByteMs(link: PeerConnection, bytesMax: number, clock: Clock): Promise<number> {
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
    throw new HearthError("INTERNAL", `a pull failed: ${fault?.why ?? "no data received"}`);
  }
  return atMs;
}

/** Measures several times and returns the medians. */
export async function benchResumption(
  native: Native,
  options: { readonly delayMs: number; readonly blockBytes: number; readonly times: number },
) {
  const measured: Resumption[] = [];
  while (measured.length < options.times) measured.push(await measureResumption(native, options));
  const again = median(measured.map(({ againMs }) => againMs));
  const roundTripMs = 2 * options.delayMs;
  return {
    transport: "quic",
    round_trip_ms: roundTripMs,
    first_ms: median(measured.map(({ firstMs }) => firstMs)),
    again_ms: again,
    /** Number of round trips until the first byte of the second connection. */
    again_round_trips: again / roundTripMs,
    /** Number of second connections, of `times`, that resumed with a ticket. */
    resumed: measured.filter(({ resumed }) => resumed).length,
    times: options.times,
  };
}

type Socket = Bun.udp.Socket<"buffer">;

/** Maximum number of clients; each has a socket to the server. */
const CLIENTS_MAX = 64;

interface UdpRelayOptions {
  /** UDP port on this host to which the relay sends the clients' datagrams. */
  readonly port: number;
  /** Delay of each datagram in milliseconds, in both directions. */
  readonly delayMs: number;
  readonly clock: Clock;
}

/** Simulates network delay in this process: relays UDP datagrams after a delay, in order. */
export class UdpRelay implements Disposable {
  readonly #options: UdpRelayOptions;
  readonly #timers = new Set<Disposable>();
  /** Sockets to the server, by the client's port. */
  readonly #back = new Map<number, Promise<Socket>>();
  #front!: Socket;
  /** Number of datagrams relayed in both directions. */
  datagrams = 0;
  #isClosed = false;

  private constructor(options: UdpRelayOptions) {
    this.#options = options;
  }

  static async open(options: UdpRelayOptions): Promise<UdpRelay> {
    const relay = new UdpRelay(options);
    relay.#front = await Bun.udpSocket({
      hostname: HOST,
      socket: { data: (_, data, port) => void relay.#toServer(data, port) },
    });
    return relay;
  }

  /** Port to which clients send. */
  get port(): number {
    return this.#front.port;
  }

  async #toServer(data: Buffer, client: number): Promise<void> {
    const bytes = Buffer.from(data);
    if (!this.#back.has(client)) {
      if (this.#back.size === CLIENTS_MAX) return;
      const toClient = (_: unknown, answer: Buffer) => {
        const copy = Buffer.from(answer);
        this.#later(() => this.#front.send(copy, client, HOST));
      };
      this.#back.set(client, Bun.udpSocket({ hostname: HOST, socket: { data: toClient } }));
    }
    const back = await this.#back.get(client)!;
    this.#later(() => back.send(bytes, this.#options.port, HOST));
  }

  #later(send: () => void): void {
    if (this.#isClosed) return;
    const timer = this.#options.clock.after(this.#options.delayMs, () => {
      this.#timers.delete(timer);
      this.datagrams++;
      send();
    });
    this.#timers.add(timer);
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    for (const timer of this.#timers) timer[Symbol.dispose]();
    this.#front.close();
    for (const back of this.#back.values()) void back.then((socket) => socket.close());
  }
}
