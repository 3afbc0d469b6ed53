import type { Socket } from "bun";
import * as protocol from "../../src/engine/protocol/index.ts";

/** A received reply with a copy of its body. */
export interface Reply {
  readonly op: number;
  readonly status: number;
  readonly requestId: number;
  readonly count: number;
  readonly body: Uint8Array;
  /** Reason of a refusal; empty otherwise. */
  readonly text: string;
}

/**
 * An engine's raw socket: sends any bytes in any pieces, and reads only on request. It does not map
 * the arena; tests use the agent's own.
 */
export class RawEngine implements Disposable {
  readonly replies: Reply[] = [];
  readonly #socket: Socket;
  readonly #reader: protocol.FrameReader;
  #unsent = new Uint8Array(0);
  #closed = false;
  #wake: () => void = () => undefined;
  #received = 0;

  private constructor(socket: Socket) {
    this.#socket = socket;
    const frameBytesMax = 2 ** 26;
    this.#reader = protocol.createFrameReader({ direction: "replies", frameBytesMax });
  }

  static async open(path: string): Promise<RawEngine> {
    const { promise, resolve } = Promise.withResolvers<RawEngine>();
    let raw: RawEngine;
    await Bun.connect({
      unix: path,
      socket: {
        open(socket) {
          raw = new RawEngine(socket);
          resolve(raw);
        },
        data: (_socket, chunk) => raw.#receive(chunk),
        drain: () => raw.#flush(),
        close: () => raw.#end(),
        error: () => raw.#end(),
      },
    });
    return promise;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Received bytes, including incomplete frames. */
  get receivedBytes(): number {
    return this.#received;
  }

  /** Bytes that the socket has not accepted yet. */
  get unsentBytes(): number {
    return this.#unsent.length;
  }

  #receive(chunk: Uint8Array): void {
    this.#received += chunk.length;
    const fault = this.#reader.push(chunk, (frame) => {
      const body = new Uint8Array(frame.bytes.subarray(frame.body, frame.end));
      const { op, status, requestId, count } = frame;
      const error = status === 0 ? null : protocol.decodeErrorReply(frame);
      const text = error?.ok ? error.value.text : "";
      this.replies.push({ op, status, requestId, count, body, text });
      return true;
    });
    if (fault !== null) throw new Error(`the agent sent an invalid frame: ${fault.text}`);
    this.#wake();
  }

  #end(): void {
    this.#closed = true;
    this.#wake();
  }

  sendBytes(bytes: Uint8Array): void {
    this.#unsent = new Uint8Array(Buffer.concat([this.#unsent, bytes]));
    this.#flush();
  }

  #flush(): void {
    while (!this.#closed && this.#unsent.length > 0) {
      const written = this.#socket.write(this.#unsent);
      if (written <= 0) return;
      this.#unsent = this.#unsent.subarray(written);
    }
  }

  send(encode: (output: protocol.Output) => void): void {
    this.sendBytes(frameOf(encode));
  }

  /** The next reply. Throws if the agent closes the connection first. */
  async next(): Promise<Reply> {
    while (this.replies.length === 0) {
      if (this.#closed) throw new Error("the agent closed the connection without a reply");
      await this.#change();
    }
    return this.replies.shift()!;
  }

  /** Sends and waits for the answer. */
  ask(encode: (output: protocol.Output) => void): Promise<Reply> {
    this.send(encode);
    return this.next();
  }

  /** Every reply up to the end of the stream. */
  async untilClosed(): Promise<Reply[]> {
    while (!this.#closed) await this.#change();
    return this.replies.splice(0);
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  async hello(manifest: Uint8Array, name = "raw"): Promise<Reply> {
    const hello = { versionMin: 1, versionMax: 1, features: 0, name, manifest };
    const reply = await this.ask((output) => protocol.encodeHelloRequest(output, 1, hello));
    if (reply.status !== 0) throw new Error(reply.text);
    return reply;
  }

  /** Whether the connection still answers. */
  async answersPing(): Promise<boolean> {
    const payload = new Uint8Array(8).fill(9);
    const reply = await this.ask((output) => protocol.encodePingRequest(output, 999, payload));
    return reply.op === protocol.Op.ping && reply.status === 0 && reply.requestId === 999;
  }

  pauseReading(): void {
    this.#socket.pause();
  }

  resumeReading(): void {
    this.#socket.resume();
  }

  [Symbol.dispose](): void {
    this.#socket.terminate();
  }
}

/** The slots granted by a reply to RESERVE. */
export function slotsOf({ count, body }: Reply): protocol.HandleItems & { offset: number[] } {
  const items = {
    count: 0,
    slot: new Uint32Array(count),
    generation: new Uint32Array(count),
    offset: [] as number[],
  };
  const view = new DataView(body.buffer);
  for (let i = 0; i < count; i++) {
    if (view.getUint32(24 * i, true) !== protocol.Outcome.ok) continue;
    items.slot[items.count] = view.getUint32(24 * i + 4, true);
    items.generation[items.count] = view.getUint32(24 * i + 8, true);
    items.offset.push(Number(view.getBigUint64(24 * i + 16, true)));
    items.count++;
  }
  return items;
}

/** Outcomes of a reply that contains nothing else. */
export function outcomesOf({ count, body }: Reply): number[] {
  const view = new DataView(body.buffer);
  return Array.from({ length: count }, (_, i) => view.getUint32(8 * i, true));
}

/** The bytes that `encode` writes: one frame or several. */
export function frameOf(encode: (output: protocol.Output) => void): Uint8Array {
  const output = protocol.createOutput();
  encode(output);
  return protocol.pendingOutput(output).slice();
}

/** A frame with any header, including ones that the codec would not write. */
export function rawFrame(header: {
  op: number;
  flags?: number;
  status?: number;
  requestId?: number;
  count?: number;
  length?: number;
  body?: Uint8Array;
}): Uint8Array {
  const body = header.body ?? new Uint8Array(0);
  const bytes = new Uint8Array(16 + body.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, header.length ?? bytes.length, true);
  view.setUint8(4, header.op);
  view.setUint8(5, header.flags ?? 0);
  view.setUint16(6, header.status ?? 0, true);
  view.setUint32(8, header.requestId ?? 5, true);
  view.setUint32(12, header.count ?? 0, true);
  bytes.set(body, 16);
  return bytes;
}
