import { createPrivateKey } from "node:crypto";
import { assert, type Clock, HearthError, systemClock } from "../../../core/index.ts";
import { type Native, type NativeBuffer, Region } from "../../../native/index.ts";
import {
  type Credentials,
  createTrust,
  type PeerLink,
  QuicTransport,
} from "../../../peers/index.ts";
import { median } from "../measure.ts";
import { benchCluster } from "./peer-bench.ts";
import {
  BENCH_NAMESPACE,
  BenchServer,
  type BenchSide,
  benchBlock,
  HOLDER,
  type Pulled,
  type PullOrder,
} from "./peer-child.ts";

type Quic = typeof import("node:quic");
type Session = import("node:quic").QuicSession;
type Stream = import("node:quic").QuicStream;

interface Writer {
  writeSync(chunk: Uint8Array): boolean;
  endSync(): number;
}

const ALPN = "bare/1";
/** As the transport has them: what is written at once, waits to be sent, and is received. */
const PIECE_BYTES = 64 * 1024;
const SOCKET_BYTES = 4 * 2 ** 20;
const NS_PER_MS = 1e6;
const COLLECT_EVERY = 2_000;
/** The runtime names it, and exports no name for it. */
const DRAIN = Symbol.for("Stream.drainableProtocol");

/**
 * QUIC of the runtime without what we put around it: a stream for each block, four bytes that say
 * which, and the block's bytes, which the asker copies to where they belong and looks at no more.
 */
export class BareQuic implements BenchSide {
  readonly #region: NativeBuffer;
  readonly #quic: Quic;
  readonly #credentials: Credentials;
  readonly #native: Native;
  #session: Session | null = null;
  #blockBytes = 0;
  #finished = 0;
  port = 0;

  private constructor(native: Native, region: Region, quic: Quic, credentials: Credentials) {
    this.#native = native;
    this.#region = region.view(region.bytes);
    this.#quic = quic;
    this.#credentials = credentials;
  }

  static async start(
    native: Native,
    region: Region,
    role: "holder" | "asker",
    credentials: Credentials,
  ): Promise<BareQuic> {
    const emit = process.emitWarning;
    // It says that it is experimental.
    process.emitWarning = () => {};
    const quic = await import("node:quic");
    process.emitWarning = emit;
    const side = new BareQuic(native, region, quic, credentials);
    if (role === "holder") await side.#listen();
    return side;
  }

  get #identity() {
    const { key, certificates } = this.#credentials;
    return { keys: [createPrivateKey(key)], certs: [Buffer.from(certificates)] };
  }

  get #common() {
    return { ca: [Buffer.from(this.#credentials.authorities)] };
  }

  async #listen(): Promise<void> {
    const serve = (session: Session) => {
      session.onstream = (stream) => void this.#serve(stream);
      session.closed.catch(() => {});
    };
    const endpoint = await this.#quic.listen(serve, {
      ...this.#common,
      alpn: [ALPN],
      sni: { "*": this.#identity },
      verifyClient: true,
      endpoint: { address: "127.0.0.1:0" },
    });
    this.port = endpoint.address!.port;
    this.#native.tuneUdp(this.port, SOCKET_BYTES);
  }

  async #serve(stream: Stream): Promise<void> {
    stream.closed.catch(() => {});
    try {
      const slot = new DataView(await oneChunk(stream)).getUint32(0, true);
      await this.#write(stream, slot * this.#blockBytes);
    } catch {
      // The asker is gone.
    }
    this.#collect();
  }

  async #write(stream: Stream, from: number): Promise<void> {
    stream.highWaterMark = PIECE_BYTES;
    const writer = stream.writer as unknown as Writer &
      Record<symbol, () => Promise<unknown> | null>;
    for (let at = 0; at < this.#blockBytes; at += PIECE_BYTES) {
      const end = Math.min(at + PIECE_BYTES, this.#blockBytes);
      const piece = this.#region.bytes.subarray(from + at, from + end);
      while (!writer.writeSync(piece)) await writer[DRAIN]!();
    }
    while (writer.endSync() < 0) await writer[DRAIN]!();
  }

  /** The runtime keeps what finished streams had until it collects, and that does not make it. */
  #collect(): void {
    if (++this.#finished % COLLECT_EVERY === 0) Bun.gc(true);
  }

  async prepare(blockBytes: number, _: number, ready: () => Promise<void>): Promise<void> {
    this.#blockBytes = blockBytes;
    await ready();
  }

  async dial(port: number): Promise<void> {
    const { keys, certs } = this.#identity;
    const session = await this.#quic.connect(`127.0.0.1:${port}`, {
      ...this.#common,
      ...{ alpn: ALPN, keys, certs, verifyPeer: "manual" },
    });
    session.closed.catch(() => {});
    await session.opened;
    this.#native.tuneUdp(session.endpoint!.address!.port, SOCKET_BYTES);
    this.#session = session;
  }

  async pull(order: PullOrder): Promise<Pulled> {
    const { blockBytes, blocks, inFlight } = order;
    const slots = Math.floor(this.#region.bytes.length / blockBytes);
    const ms: number[] = [];
    let next = 0;
    let wrong = 0;
    const start = Bun.nanoseconds();
    const one = async () => {
      while (next < blocks) {
        const began = Bun.nanoseconds();
        const bytes = await this.#pullOne(next++ % slots, blockBytes);
        ms.push((Bun.nanoseconds() - began) / NS_PER_MS);
        if (bytes !== blockBytes) wrong++;
      }
    };
    await Promise.all(Array.from({ length: inFlight }, one));
    return { seconds: (Bun.nanoseconds() - start) / 1e9, ms, wrong };
  }

  /** How many bytes came. */
  async #pullOne(slot: number, blockBytes: number): Promise<number> {
    assert(this.#session !== null, "an asker has dialled");
    const stream = await this.#session.createBidirectionalStream();
    stream.closed.catch(() => {});
    const wish = new Uint8Array(4);
    new DataView(wish.buffer).setUint32(0, slot, true);
    const writer = stream.writer as unknown as Writer;
    writer.writeSync(wish);
    writer.endSync();
    let at = slot * blockBytes;
    for await (const batch of stream) {
      for (const chunk of batch) {
        this.#region.bytes.set(chunk, at);
        at += chunk.length;
      }
    }
    this.#collect();
    return at - slot * blockBytes;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#session?.destroy();
  }
}

async function oneChunk(stream: Stream): Promise<ArrayBuffer> {
  const bytes: number[] = [];
  for await (const batch of stream) for (const chunk of batch) bytes.push(...chunk);
  return Uint8Array.from(bytes).buffer;
}

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
    await using link = dialled.link;
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

type Socket = Bun.udp.Socket<"buffer">;

/** Sockets of clients, each with its own way to the server. */
const CLIENTS_MAX = 64;

export interface UdpRelayOptions {
  /** Where datagrams go, on this host. */
  readonly port: number;
  /** How long each is on its way, in either direction; milliseconds. */
  readonly delayMs: number;
  readonly clock: Clock;
}

/** A wire of some length, in user space: passes on datagrams after a while, in order. */
export class UdpRelay implements Disposable {
  readonly #options: UdpRelayOptions;
  readonly #timers = new Set<Disposable>();
  /** By the client's port. */
  readonly #back = new Map<number, Promise<Socket>>();
  #front!: Socket;
  /** Datagrams that passed, both ways. */
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

  /** Where clients send to. */
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
