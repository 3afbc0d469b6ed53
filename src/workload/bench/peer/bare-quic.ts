import { createPrivateKey } from "node:crypto";
import { assert } from "../../../core/index.ts";
import type { Native, NativeBuffer, Region } from "../../../native/index.ts";
import type { Credentials } from "../../../peers/index.ts";
import { pullAll } from "../measure.ts";
import type { BenchSide, Pulled, PullOrder } from "./peer-child.ts";

type Quic = typeof import("node:quic");

type Session = import("node:quic").QuicSession;

type Stream = import("node:quic").QuicStream;

interface Writer {
  writeSync(chunk: Uint8Array): boolean;
  endSync(): number;
}

const ALPN = "bare/1";

/**
 * Values of Hearth's QUIC transport: bytes per write, and bytes of the send and receive buffers.
 */
const PIECE_BYTES = 64 * 1024;

const SOCKET_BYTES = 4 * 2 ** 20;

const COLLECT_EVERY = 2_000;

/** The runtime uses this symbol without exporting it. */
const DRAIN = Symbol.for("Stream.drainableProtocol");

/**
 * The runtime's QUIC without Hearth's transport. Each block has a stream: the client sends four
 * bytes that name the block, and the server the block's bytes, which the client copies to their
 * slot without verification.
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
    role: "server" | "client",
    credentials: Credentials,
  ): Promise<BareQuic> {
    const emit = process.emitWarning;
    // Loading the module prints a warning that it is experimental; suppress it.
    process.emitWarning = () => {};
    const quic = await import("node:quic");
    process.emitWarning = emit;
    const side = new BareQuic(native, region, quic, credentials);
    if (role === "server") await side.#listen();
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
      // The client has disconnected.
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
      while (!writer.writeSync(piece)) await writer[DRAIN]();
    }
    while (writer.endSync() < 0) await writer[DRAIN]();
  }

  /**
   * Requests a garbage collection: the runtime frees finished streams only then, and the streams do
   * not cause one.
   */
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
    const { blockBytes } = order;
    const slots = Math.floor(this.#region.bytes.length / blockBytes);
    return pullAll({ ...order, slots }, async (slot) => {
      return (await this.#pullOne(slot, blockBytes)) === blockBytes;
    });
  }

  /** Pulls one block into a slot and returns the number of bytes that arrived. */
  async #pullOne(slot: number, blockBytes: number): Promise<number> {
    assert(this.#session !== null, "a client has dialled");
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
