import { type Clock, messageOf } from "../../../core/index.ts";
import type { FrameHeader, PeerRequest } from "../../messages.ts";
import type {
  ConnectionFaultKind,
  PeerServer,
  Served,
  ServedBlock,
  TransportLog,
} from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import {
  decodeRequest,
  encodeAnswer,
  encodeFrame,
  encodeRefusal,
  OpenItems,
} from "../../wire/index.ts";
import type { RequestLimit } from "../connection-state.ts";
import { type CommonMessage, isCommon, type OwnMessage } from "./codec.ts";
import type { ChannelEnd, ChannelHandler, ControlChannel } from "./control-channel.ts";
import { type ChannelLimits, KeepAlive } from "./limits.ts";

/** Objects that all connections of peers to one transport share. */
export interface ConnectionHost {
  readonly server: PeerServer;
  readonly clock: Clock;
  readonly limits: ChannelLimits;
  readonly log: TransportLog;
  readonly requests: RequestLimit;
}

export type PullRequest = Extract<PeerRequest, { op: "pull" }>;
type Call = Exclude<PeerRequest, { op: "pull" }>;

/** Carries the payload of pulls that this host serves. Each transport implements it. */
export interface ServerPayload<Own, Pull extends ServedPull> {
  /** True after this host has replied to the peer's hello, so that requests are permitted. */
  readonly isGreeted: boolean;
  /**
   * Handles a message that only this transport defines. `pull`: the running pull that the message
   * names, if any. Returns the reason if the message is invalid, otherwise null.
   */
  take(message: Own, pull: Pull | undefined): string | null;
  /**
   * Closes the payload connection. Each slot reference is released when nothing reads the slot any
   * more.
   */
  close(): Promise<void>;
}

/** Methods of a connection that its payload part uses. */
export interface ConnectionContext<Own, Pull extends ServedPull> {
  readonly peer: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly host: ConnectionHost;
  readonly isOver: boolean;
  /** Call when payload can be sent. Cancels the set-up timeout. */
  opened(): void;
  /**
   * Starts a pull with `begin`, or replies `busy`. `begin` returns the pull, or the reason the
   * request is invalid. Returns that reason, or null.
   */
  startPull(
    id: number,
    body: Uint8Array,
    begin: (request: PullRequest) => Pull | string,
  ): string | null;
  end(kind: ConnectionFaultKind, why: string): void;
}

export interface ServerConnectionOptions<Own, Pull extends ServedPull> {
  readonly peer: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly host: ConnectionHost;
  readonly payload: (context: ConnectionContext<Own, Pull>) => ServerPayload<Own, Pull>;
  /** Reason to report if the connection is not set up in time. */
  readonly late: string;
  /** Called when the connection has ended and holds no slot references. */
  readonly onOver: () => void;
}

/**
 * Server's side of a connection to a peer with a verified certificate.
 *
 * States: waiting for the hello → setting up the payload part → open → over.
 */
export class ServerConnection<Own extends OwnMessage, Pull extends ServedPull>
  implements ChannelHandler<Own>, ConnectionContext<Own, Pull>
{
  readonly peer: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly host: ConnectionHost;
  readonly #payload: ServerPayload<Own, Pull>;
  readonly #onOver: () => void;
  readonly #calls = new Map<number, AbortController>();
  readonly #pulls = new Map<number, Pull>();
  readonly #keepAlive: KeepAlive;
  readonly #setUp: Disposable;
  #isOver = false;
  readonly #torn = Promise.withResolvers<void>();
  /** Callbacks that wake callers waiting until no request is running. */
  #quiet: (() => void)[] = [];

  constructor(options: ServerConnectionOptions<Own, Pull>) {
    const { peer, channel, host } = options;
    this.peer = peer;
    this.channel = channel;
    this.host = host;
    this.#onOver = options.onOver;
    const { clock, limits } = host;
    this.#keepAlive = new KeepAlive({
      channel,
      clock,
      limits,
      asks: false,
      onRtt: () => {},
      onDead: (why) => this.end("stalled", why),
    });
    this.#setUp = clock.after(limits.setUpMs, () => this.end("stalled", options.late));
    this.#payload = options.payload(this);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  opened(): void {
    this.#setUp[Symbol.dispose]();
  }

  /** Handles a message from the client. */
  receive(message: Own | CommonMessage): void {
    if (this.#isOver) return;
    const wrong = isCommon(message)
      ? this.#take(message)
      : this.#payload.take(message, this.#pulls.get(message.id ?? -1));
    if (wrong !== null) this.end("protocol", wrong);
  }

  channelEnded(end: ChannelEnd): void {
    this.end(end.kind, end.why);
  }

  /**
   * Handles a message that all transports define. Returns the reason if it is invalid, otherwise
   * null.
   */
  #take(message: CommonMessage): string | null {
    if (!this.#payload.isGreeted) return BEFORE_HELLO;
    switch (message.kind) {
      case "call":
        return this.#startCall(message.id, message.body);
      case "cancel":
        this.#calls.get(message.id)?.abort();
        this.#pulls.get(message.id)?.cancel();
        return null;
      case "ping":
        this.channel.send({ kind: "pong", nonce: message.nonce });
        return null;
      case "pong":
        return null;
      case "bye":
        this.end("broken", "the peer closed the connection");
        return null;
      default:
        return UNEXPECTED_ANSWER;
    }
  }

  /** Decides whether another request may run. Null if its number is already in use. */
  #admit(id: number): boolean | null {
    if (this.#calls.has(id) || this.#pulls.has(id)) return null;
    if (this.#running >= this.host.limits.connectionRequestsMax) return false;
    return this.host.requests.take();
  }

  get #running(): number {
    return this.#calls.size + this.#pulls.size;
  }

  #finish(id: number): void {
    this.#calls.delete(id);
    this.#pulls.delete(id);
    this.host.requests.give();
    if (this.#running > 0) return;
    for (const wake of this.#quiet.splice(0)) wake();
  }

  #startCall(id: number, body: Uint8Array): string | null {
    const decoded = decodeRequest(body);
    if (!decoded.ok) return decoded.why;
    const { request } = decoded;
    if (request.op === "pull") return "pull sent as a call";
    const admitted = this.#admit(id);
    if (admitted === null) return NUMBER_IN_USE;
    if (!admitted) {
      const { retryAfterMs } = this.host.limits;
      this.channel.send({ kind: "answer", id, body: encodeAnswer({ op: "busy", retryAfterMs }) });
      return null;
    }
    const abort = new AbortController();
    this.#calls.set(id, abort);
    this.#call(id, request, abort).finally(() => this.#finish(id));
    return null;
  }

  /** Serves a request other than a pull, and sends the reply. Never throws. */
  async #call(id: number, request: Call, abort: AbortController): Promise<void> {
    const { server, clock, limits, log } = this.host;
    const { signal } = abort;
    using _ = clock.after(limits.requestMs, () => abort.abort());
    try {
      const answer = await server.call(this.peer, request, signal);
      // Replies can be large, so each is encoded only when the previous ones are written.
      while (!signal.aborted && this.channel.isFull) await this.channel.room();
      if (!signal.aborted) this.channel.send({ kind: "answer", id, body: encodeAnswer(answer) });
    } catch (thrown) {
      const fields = { peer: this.peer.worker, op: request.op, why: messageOf(thrown) };
      log("error", "request failed", fields);
      if (signal.aborted) return;
      const body = encodeAnswer({ op: "refused", why: "the request failed" });
      this.channel.send({ kind: "answer", id, body });
    }
  }

  startPull(
    id: number,
    body: Uint8Array,
    begin: (request: PullRequest) => Pull | string,
  ): string | null {
    const decoded = decodeRequest(body);
    if (!decoded.ok) return decoded.why;
    if (decoded.request.op !== "pull") return "call sent as a pull";
    const pull = begin(decoded.request);
    if (typeof pull === "string") return pull;
    const admitted = this.#admit(id);
    if (admitted === null) return NUMBER_IN_USE;
    if (!admitted) {
      this.channel.send({ kind: "busy", id, retryAfterMs: this.host.limits.retryAfterMs });
      return null;
    }
    this.#pulls.set(id, pull);
    pull.run().finally(() => this.#finish(id));
    return null;
  }

  /**
   * Ends the connection: cancels all requests, and sends `why` to the peer if the connection still
   * works.
   */
  end(kind: ConnectionFaultKind, why: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { log } = this.host;
    const level = kind === "protocol" || kind === "refused" ? "warn" : "debug";
    log(level, "inbound connection ended", { peer: this.peer.worker, kind, why });
    this.#keepAlive[Symbol.dispose]();
    this.#setUp[Symbol.dispose]();
    for (const abort of this.#calls.values()) abort.abort();
    for (const pull of [...this.#pulls.values()]) pull.cancel();
    if (kind === "broken" || kind === "stalled") this.channel.destroy();
    else this.channel.close({ kind: "bye", fault: kind, why });
    this.#tearDown()
      .catch((thrown) => {
        const fields = { peer: this.peer.worker, why: messageOf(thrown) };
        log("error", "closing a connection's payload failed", fields);
      })
      .finally(() => {
        this.#onOver();
        this.#torn.resolve();
      });
  }

  async #tearDown(): Promise<void> {
    await this.#payload.close();
    for (const pull of [...this.#pulls.values()]) pull.payloadClosed();
    if (this.#running > 0) await new Promise<void>((resolve) => this.#quiet.push(resolve));
  }

  get torn(): Promise<void> {
    return this.#torn.promise;
  }
}

const NUMBER_IN_USE = "request number is already in use";
export const BEFORE_HELLO = "request before the hello";
/** Fault reported to a peer that sends a reply on a connection that it opened. */
export const UNEXPECTED_ANSWER = "answer received on a server connection";

/**
 * Server's side of one pull, independent of how payload is carried. Releases every slot reference
 * exactly once.
 */
export abstract class ServedPull<Own = unknown> {
  protected readonly id: number;
  protected readonly request: PullRequest;
  protected readonly connection: Pick<ConnectionContext<Own, never>, "peer" | "channel" | "host">;
  readonly #abort = new AbortController();
  readonly #lent = new Map<number, ServedBlock>();
  readonly #left: Set<number>;
  /**
   * Items of the request. A block whose header differs from its item is sent only after the client
   * agrees.
   */
  readonly #requested: OpenItems;
  #lentBytes = 0;
  /** Wakes the loop that sends blocks, after a slot reference was released. */
  #wake: (() => void) | null = null;

  constructor(
    id: number,
    request: PullRequest,
    connection: Pick<ConnectionContext<Own, never>, "peer" | "channel" | "host">,
  ) {
    this.id = id;
    this.request = request;
    this.connection = connection;
    this.#left = new Set(request.items.keys());
    this.#requested = new OpenItems(request.namespace, request.items);
  }

  /** Waits until payload can be sent. Resolves with false if it never can be. */
  protected abstract ready(): Promise<boolean>;
  /** Sends a refusal, encoded in `body`, for one item. */
  protected abstract refuse(body: Uint8Array): void;
  /**
   * Sends the block of item `index`, and calls `release` when it does not read the block any more.
   * `isRequested`: true if the header matches the request. Throws if the header violates the wire
   * format.
   */
  protected abstract send(index: number, block: ServedBlock, isRequested: boolean): void;
  /**
   * Called when the pull is cancelled while these blocks are in progress. Call `release` for each
   * when nothing reads it any more.
   */
  protected abstract giveUp(indexes: readonly number[]): void;
  /** Called when the payload connection is closed, so that nothing reads any block. */
  payloadClosed(): void {}

  get isGivenUp(): boolean {
    return this.#abort.signal.aborted;
  }

  /** Sends all blocks and refusals, unless the pull is cancelled. Never throws. */
  async run(): Promise<void> {
    const { clock, limits } = this.connection.host;
    const wholeMs = Math.min(this.request.deadlineMs, limits.requestMs);
    using _ = clock.after(wholeMs, () => this.cancel());
    if (!(await this.ready())) return;
    const fault = await this.#serve();
    while (this.#lent.size > 0) await this.#lessLent();
    if (this.#left.size > 0) this.connection.channel.send({ kind: "end", id: this.id, ...fault });
  }

  cancel(): void {
    this.#abort.abort();
    this.giveUp([...this.#lent.keys()]);
    this.#wake?.();
  }

  /** Returns whether item `index` was answered, so that a further message about it may be late. */
  isAnswered(index: number): boolean {
    return index < this.request.items.length && !this.#left.has(index);
  }

  /** Sends all blocks and refusals. Returns the reason if some items were not answered. */
  async #serve(): Promise<{ readonly fault: ConnectionFaultKind; readonly why: string }> {
    const { peer, channel, host } = this.connection;
    const { signal } = this.#abort;
    try {
      for await (const served of host.server.serve(peer, this.request, signal)) {
        this.#take(served);
        if (this.#left.size === 0) break;
        while (!signal.aborted && this.#isFull()) await this.#lessLent();
        while (!signal.aborted && channel.isFull) await channel.room();
        if (signal.aborted) break;
      }
    } catch (thrown) {
      host.log("error", "pull failed", { peer: peer.worker, why: messageOf(thrown) });
      return { fault: "broken", why: "the blocks could not be served" };
    }
    if (signal.aborted) return { fault: "stalled", why: "the deadline passed" };
    return { fault: "broken", why: "some blocks were not served" };
  }

  #take(served: Served): void {
    const { host, peer } = this.connection;
    const { index } = served;
    if (!this.#left.has(index)) {
      host.log("error", "the server returned a block that was not requested", {
        peer: peer.worker,
        index,
      });
      if (served.kind === "block") served.release();
      return;
    }
    if (served.kind !== "block") {
      this.refuse(encodeRefusal(index, served));
      this.#left.delete(index);
      return;
    }
    if (this.isGivenUp) {
      served.release();
      return;
    }
    const { header } = served;
    this.#lent.set(index, served);
    this.#lentBytes += header.bytes;
    const isRequested = this.#requested.take({ kind: "frame", index, header }) === null;
    this.send(index, served, isRequested);
    this.#left.delete(index);
  }

  /**
   * Encodes a block's header. If the header violates the wire format, releases the block and
   * throws.
   */
  frame(index: number, header: FrameHeader): Uint8Array {
    try {
      return encodeFrame(index, header);
    } catch (thrown) {
      this.release(index);
      throw thrown;
    }
  }

  /** Notifies the client that a block will not be sent although its header was. */
  lose(index: number): void {
    this.connection.channel.send({ kind: "lost", id: this.id, index });
    this.release(index);
  }

  /** Releases the reference to a block's slot, which nothing reads any more. */
  release(index: number): void {
    const block = this.#lent.get(index);
    if (block === undefined) return;
    this.#lent.delete(index);
    this.#lentBytes -= block.header.bytes;
    block.release();
    this.#wake?.();
  }

  #isFull(): boolean {
    const { lentMax, lentBytesMax } = this.connection.host.limits;
    return this.#lent.size >= lentMax || this.#lentBytes >= lentBytesMax;
  }

  #lessLent(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = () => {
        this.#wake = null;
        resolve();
      };
    });
  }
}
