import { accessSync, constants } from "node:fs";
import type { Socket } from "bun";
import { HearthError, sleep, systemClock } from "../core/index.ts";
import type { Native } from "../native/index.ts";
import * as protocol from "./protocol/index.ts";

/** Timeout in ms for a reply that carries a file descriptor. */
const ANSWER_MS = 5_000;

/**
 * Decodes one reply. Returns `more` if another reply to the same request follows, a refusal if the
 * reply is invalid, and null if the request is complete.
 */
type Decode = (frame: protocol.Frame) => protocol.Refusal | "more" | null;

interface Waiting {
  readonly decode: Decode;
  readonly resolve: () => void;
  readonly reject: (error: HearthError) => void;
}

function refusedBy(status: number, text: string): HearthError {
  const name = protocol.frameStatusName(status) ?? `status ${status}`;
  return new HearthError("ENGINE_REFUSED", `the agent refused (${name}): ${text}`);
}

function brokenReply(text: string): HearthError {
  return new HearthError("ENGINE_PROTOCOL", `invalid answer from the agent: ${text}`);
}

/** Client side of a connection. Matches replies to requests by request id. */
export class ClientConnection {
  readonly output: protocol.Output = protocol.createOutput();
  readonly closed: Promise<HearthError>;
  readonly #waiting = new Map<number, Waiting>();
  #reader: protocol.FrameReader | null = null;
  #socket: Socket | null = null;
  #nextId = 1;
  #fault: HearthError | null = null;
  #resolveClosed!: (reason: HearthError) => void;
  #flushQueued = false;

  private constructor() {
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
  }

  static async open(path: string): Promise<ClientConnection> {
    const connection = new ClientConnection();
    try {
      connection.#socket = await Bun.connect({
        unix: path,
        socket: {
          // The socket must stay unread until `receiveWithFd` has read HELLO's reply and its
          // descriptor; an ordinary read would lose the descriptor.
          open: (socket) => void socket.pause(),
          data: (_socket, chunk) => connection.#receive(chunk),
          drain: () => connection.flush(),
          close: () =>
            connection.#end(new HearthError("ENGINE_CLOSED", "the agent closed the connection")),
          error: (_socket, error) => connection.#end(closedBy(error)),
        },
      });
    } catch (cause) {
      throw notConnected(path, cause);
    }
    return connection;
  }

  /**
   * Tries once to read HELLO's reply together with its file descriptor. Null if the reply has not
   * arrived.
   */
  receiveWithFd(native: Native): { frame: protocol.Frame; fd: number } | null {
    if (this.#fault !== null) throw this.#fault;
    const bytes = new Uint8Array(4096);
    const received = native.receiveFd(socketFd(this.#socket!), bytes);
    if (received === "try_again") return null;
    if (typeof received === "string") {
      throw new HearthError(
        "ENGINE_CLOSED",
        "the agent closed the connection before it answered HELLO",
      );
    }
    const { fd, count } = received;
    const frame = wholeFrame(bytes.subarray(0, count));
    if (frame !== null && frame.status !== 0) {
      const error = this.take(protocol.decodeErrorReply(frame));
      throw refusedBy(error.status, error.text);
    }
    if (frame === null || fd === null)
      throw brokenReply("the answer to HELLO came without the arena's descriptor");
    return { frame, fd };
  }

  /** Starts ordinary reading of the socket: replies are decoded as they arrive. */
  start(frameBytesMax: number): void {
    const most = Math.max(frameBytesMax, protocol.DEFAULT_LIMITS.frameBytesMax);
    this.#reader = protocol.createFrameReader({ direction: "replies", frameBytesMax: most });
    this.#socket!.resume();
  }

  /**
   * Sends the frame that `encode` writes. The promise settles once `decode` has processed the
   * reply.
   */
  request(encode: (output: protocol.Output, id: number) => void, decode: Decode): Promise<void> {
    return new Promise((resolve, reject) => {
      const id = this.send(encode, reject);
      if (id !== null) this.#waiting.set(id, { decode, resolve, reject });
    });
  }

  /** Sends a request like `request` and resolves with the decoded reply. */
  async ask<Value>(
    encode: (output: protocol.Output, id: number) => void,
    decode: (frame: protocol.Frame) => protocol.Decoded<Value>,
  ): Promise<Value> {
    let value: Value | undefined;
    await this.request(encode, (frame) => {
      value = this.take(decode(frame));
      return null;
    });
    return value!;
  }

  /**
   * Sends a request like `request`; its reply contains only one outcome per item, which is written
   * to the caller's batch.
   */
  outcomes(
    encode: (output: protocol.Output, id: number) => void,
    into: protocol.OutcomeItems,
  ): Promise<void> {
    return this.request(encode, (frame) => protocol.decodeOutcomesReply(frame, into));
  }

  /** Sends a request like `request` and resolves with the number that `decode` returns. */
  async number(
    encode: (output: protocol.Output, id: number) => void,
    decode: (frame: protocol.Frame) => number | protocol.Refusal,
  ): Promise<number> {
    let value = 0;
    await this.request(encode, (frame) => {
      const answer = decode(frame);
      if (typeof answer !== "number") return answer;
      value = answer;
      return null;
    });
    return value;
  }

  /**
   * Sends a request like `request` and resolves with the file descriptor that came with the reply,
   * or null. An ordinary read would lose the descriptor, so this method polls the socket and no
   * other code may read it meanwhile.
   */
  async requestFd(
    native: Native,
    encode: (output: protocol.Output, id: number) => void,
    decode: Decode,
  ): Promise<number | null> {
    const bytes = new Uint8Array(4096);
    const deadline = systemClock.monotonicMs() + ANSWER_MS;
    let fd: number | null = null;
    let isAnswered = false;
    this.#socket!.pause();
    const answered = this.request(encode, decode).finally(() => {
      isAnswered = true;
    });
    answered.catch(() => undefined);
    this.flush();
    for (let pauseMs = 0.1; !isAnswered; pauseMs = Math.min(20, pauseMs * 2)) {
      const received = native.receiveFd(socketFd(this.#socket!), bytes);
      if (typeof received !== "string") {
        fd = received.fd ?? fd;
        this.#receive(bytes.subarray(0, received.count));
      } else if (received !== "try_again" || systemClock.monotonicMs() > deadline) {
        this.#end(new HearthError("ENGINE_CLOSED", "the agent did not answer with a descriptor"));
      }
      await sleep(systemClock, pauseMs);
    }
    this.#socket!.resume();
    try {
      await answered;
      return fd;
    } catch (error) {
      if (fd !== null) native.closeFd(fd);
      throw error;
    }
  }

  /**
   * Sends a request that gets no reply. All requests made in one turn of the event loop are written
   * to the socket together.
   */
  send(
    encode: (output: protocol.Output, id: number) => void,
    onFault?: (error: HearthError) => void,
  ): number | null {
    if (this.#fault !== null) {
      onFault?.(this.#fault);
      return null;
    }
    this.#nextId = (this.#nextId + 1) >>> 0 || 1;
    encode(this.output, this.#nextId);
    if (!this.#flushQueued) {
      this.#flushQueued = true;
      queueMicrotask(() => {
        this.#flushQueued = false;
        this.flush();
      });
    }
    return this.#nextId;
  }

  flush(): void {
    while (this.#fault === null && protocol.pendingBytes(this.output) > 0) {
      const written = this.#socket!.write(protocol.pendingOutput(this.output));
      // The agent may have sent a refusal before it closed the socket. Before HELLO's reply
      // (`#reader` null) that refusal is still unread, so a failed write does not end the
      // connection yet.
      if (written < 0 && this.#reader !== null) {
        this.#end(new HearthError("ENGINE_CLOSED", "the agent closed the connection"));
      }
      if (written <= 0) return;
      protocol.consumeOutput(this.output, written);
    }
  }

  /** Returns the decoded value, or throws an error made from the refusal. */
  take<Value>(decoded: protocol.Decoded<Value>): Value {
    if (decoded.ok) return decoded.value;
    throw brokenReply(decoded.refusal.text);
  }

  #receive(chunk: Uint8Array): void {
    const fault = this.#reader?.push(chunk, (frame) => {
      this.#answer(frame);
      return true;
    });
    if (fault) this.#end(brokenReply(fault.text));
  }

  #answer(frame: protocol.Frame): void {
    const waiting = this.#waiting.get(frame.requestId);
    this.#waiting.delete(frame.requestId);
    if (frame.status !== 0) {
      const reply = protocol.decodeErrorReply(frame);
      const error = reply.ok
        ? refusedBy(reply.value.status, reply.value.text)
        : brokenReply(reply.refusal.text);
      // An error reply without a matching request concerns the whole connection, which the agent is
      // about to close.
      if (waiting === undefined) this.#end(error);
      else waiting.reject(error);
      return;
    }
    if (waiting === undefined) {
      this.#end(brokenReply(`unknown request id ${frame.requestId}`));
      return;
    }
    let bad: protocol.Refusal | "more" | null;
    try {
      bad = waiting.decode(frame);
    } catch (error) {
      waiting.reject(error as HearthError);
      return;
    }
    if (bad === "more") this.#waiting.set(frame.requestId, waiting);
    else if (bad === null) waiting.resolve();
    else waiting.reject(brokenReply(bad.text));
  }

  /** Sends requests that are still buffered, such as releases, and closes the connection. */
  close(): void {
    this.flush();
    this.#end(new HearthError("ENGINE_CLOSED", "this client closed the connection"));
  }

  #end(reason: HearthError): void {
    if (this.#fault !== null) return;
    this.#fault = reason;
    this.#socket?.end();
    for (const { reject } of this.#waiting.values()) reject(reason);
    this.#waiting.clear();
    this.#resolveClosed(reason);
  }
}

function notConnected(path: string, cause: unknown): HearthError {
  let reason: unknown = (cause as NodeJS.ErrnoException).code;
  try {
    accessSync(path, constants.R_OK | constants.W_OK);
  } catch (denied) {
    reason = (denied as NodeJS.ErrnoException).code;
  }
  if (reason === "EACCES") {
    const fix = "join the group of the agent's socket (engine.socket_group), or be its user";
    return new HearthError("ENGINE_CLOSED", `no permission to connect to ${path}`, { cause, fix });
  }
  const what = reason === "ENOENT" ? "no socket" : "no agent listens";
  const fix = "start the agent, and check that this is its engine.socket";
  return new HearthError("ENGINE_CLOSED", `${what} at ${path}`, { cause, fix });
}

function closedBy(error: Error): HearthError {
  return new HearthError("ENGINE_CLOSED", `connection broken: ${error.message}`, { cause: error });
}

/** Returns the frame in `bytes`, or null if the frame is incomplete. */
function wholeFrame(bytes: Uint8Array): protocol.Frame | null {
  let found: protocol.Frame | null = null;
  const reader = protocol.createFrameReader({ direction: "replies", frameBytesMax: 4096 });
  reader.push(bytes, (frame) => {
    found = { ...protocol.emptyFrame(), ...frame };
    return true;
  });
  return bytes.length >= protocol.HEADER_BYTES ? found : null;
}

/** Returns the socket's file descriptor. Bun's sockets have one that its types do not declare. */
function socketFd(socket: Socket): number {
  return (socket as unknown as { readonly fd: number }).fd;
}
