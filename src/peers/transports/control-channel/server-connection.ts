import { type Clock, messageOf } from "../../../core/index.ts";
import type { FrameHeader, PeerRequest } from "../../messages.ts";
import type {
  LinkFaultKind,
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
import {
  type ChannelEnd,
  type ChannelHandler,
  type CommonMessage,
  type ControlChannel,
  isCommon,
} from "./control-channel.ts";
import { type ChannelLimits, KeepAlive } from "./limits.ts";

/** What all links of others have in common. */
export interface ConnectionHost {
  readonly server: PeerServer;
  readonly clock: Clock;
  readonly limits: ChannelLimits;
  readonly log: TransportLog;
  /** False: as many requests as may be are under way, over all links. */
  takeRequest(): boolean;
  giveRequest(): void;
}

export type PullRequest = Extract<PeerRequest, { op: "pull" }>;
type Call = Exclude<PeerRequest, { op: "pull" }>;

/** A pull under way. */
export interface RunningPull {
  /** Serves until all is sent or given up. Never throws. */
  run(): Promise<void>;
  cancel(): void;
}

/** What carries the bytes of a link's pulls. */
export interface ServerPayload<Own> {
  /** Its greeting was answered: requests may come. */
  readonly isGreeted: boolean;
  /** A message of its own. In words what is wrong with it; null: nothing. */
  take(message: Own): string | null;
  /** Ends. What is lent comes back as soon as nobody reads it. */
  close(): Promise<void>;
}

/** What a payload may do with its link. */
export interface ConnectionContext<Own> {
  readonly peer: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly host: ConnectionHost;
  readonly isOver: boolean;
  /** Payload can come: nobody waits for the set-up any more. */
  opened(): void;
  /** Begins a pull, or says that there is too much to do. In words what is wrong with it. */
  startPull(id: number, begin: () => RunningPull): string | null;
  end(kind: LinkFaultKind, why: string): void;
}

export interface ServerConnectionOptions<Own> {
  readonly peer: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly host: ConnectionHost;
  readonly payload: (room: ConnectionContext<Own>) => ServerPayload<Own>;
  /** Said where the set-up takes too long. */
  readonly late: string;
  /** The link is over and lends nothing any more. */
  readonly onOver: () => void;
}

/**
 * The end of a link of another worker, whose certificate was verified before.
 *
 * States: waiting for the hello → payload on its way → open → over.
 */
export class ServerConnection<Own extends { readonly kind: string }>
  implements ChannelHandler<Own>, ConnectionContext<Own>
{
  readonly peer: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly host: ConnectionHost;
  readonly #payload: ServerPayload<Own>;
  readonly #onOver: () => void;
  /** Gives up what is under way, by number. */
  readonly #running = new Map<number, () => void>();
  readonly #keepAlive: KeepAlive;
  readonly #setUp: Disposable;
  #isOver = false;
  readonly #torn = Promise.withResolvers<void>();
  /** All that was under way has ended. */
  #quiet: (() => void)[] = [];

  constructor(options: ServerConnectionOptions<Own>) {
    const { peer, channel, host } = options;
    this.peer = peer;
    this.channel = channel;
    this.host = host;
    this.#onOver = options.onOver;
    const { clock, limits } = host;
    this.#keepAlive = new KeepAlive({
      ...{ channel, clock, limits, asks: false },
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

  /** Takes a message of the asker. */
  receive(message: Own | CommonMessage): void {
    if (this.#isOver) return;
    const wrong = isCommon(message) ? this.#take(message) : this.#payload.take(message);
    if (wrong !== null) this.end("protocol", wrong);
  }

  channelEnded(end: ChannelEnd): void {
    this.end(end.kind, end.why);
  }

  /** In words what is wrong with it; null: nothing. */
  #take(message: CommonMessage): string | null {
    if (!this.#payload.isGreeted) return BEFORE_HELLO;
    switch (message.kind) {
      case "call":
        return this.#startCall(message.id, message.body);
      case "cancel":
        this.#running.get(message.id)?.();
        return null;
      case "ping":
        this.channel.send({ kind: "pong", nonce: message.nonce });
        return null;
      case "pong":
        return null;
      case "bye":
        this.end("broken", "it said that it ends");
        return null;
      default:
        return UNEXPECTED_ANSWER;
    }
  }

  /** Whether one more request may be worked on; null: its number is used already. */
  #admit(id: number): boolean | null {
    if (this.#running.has(id)) return null;
    if (this.#running.size >= this.host.limits.connectionRequestsMax) return false;
    return this.host.takeRequest();
  }

  #finish(id: number): void {
    this.#running.delete(id);
    this.host.giveRequest();
    if (this.#running.size > 0) return;
    for (const wake of this.#quiet.splice(0)) wake();
  }

  #startCall(id: number, body: Uint8Array): string | null {
    const decoded = decodeRequest(body);
    if (!decoded.ok) return decoded.why;
    const { request } = decoded;
    if (request.op === "pull") return "it pulled as a call";
    const admitted = this.#admit(id);
    if (admitted === null) return NUMBER_IN_USE;
    if (!admitted) {
      const { retryAfterMs } = this.host.limits;
      this.channel.send({ kind: "answer", id, body: encodeAnswer({ op: "busy", retryAfterMs }) });
      return null;
    }
    const abort = new AbortController();
    this.#running.set(id, () => abort.abort());
    this.#call(id, request, abort).finally(() => this.#finish(id));
    return null;
  }

  /** Never throws. */
  async #call(id: number, request: Call, abort: AbortController): Promise<void> {
    const { server, clock, limits, log } = this.host;
    const { signal } = abort;
    using _ = clock.after(limits.requestMs, () => abort.abort());
    try {
      const answer = await server.call(this.peer, request, signal);
      // Answers may be long: one is written down when those before it are taken.
      while (!signal.aborted && this.channel.isFull) await this.channel.room();
      if (!signal.aborted) this.channel.send({ kind: "answer", id, body: encodeAnswer(answer) });
    } catch (thrown) {
      const fields = { peer: this.peer.worker, op: request.op, why: messageOf(thrown) };
      log("error", "a peer's request could not be answered", fields);
      if (signal.aborted) return;
      const body = encodeAnswer({ op: "refused", why: "it could not be answered" });
      this.channel.send({ kind: "answer", id, body });
    }
  }

  startPull(id: number, begin: () => RunningPull): string | null {
    const admitted = this.#admit(id);
    if (admitted === null) return NUMBER_IN_USE;
    if (!admitted) {
      this.channel.send({ kind: "busy", id, retryAfterMs: this.host.limits.retryAfterMs });
      return null;
    }
    const pull = begin();
    this.#running.set(id, () => pull.cancel());
    pull.run().finally(() => this.#finish(id));
    return null;
  }

  /** Gives everything up. `why` is said to the other side where that makes sense. */
  end(kind: LinkFaultKind, why: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { log } = this.host;
    const level = kind === "protocol" || kind === "refused" ? "warn" : "debug";
    log(level, "a peer's link ended", { peer: this.peer.worker, kind, why });
    this.#keepAlive[Symbol.dispose]();
    this.#setUp[Symbol.dispose]();
    for (const cancel of [...this.#running.values()]) cancel();
    if (kind === "broken" || kind === "stalled") this.channel.destroy();
    else this.channel.close({ kind: "bye", fault: kind, why });
    this.#tearDown()
      .catch((thrown) => {
        const fields = { peer: this.peer.worker, why: messageOf(thrown) };
        log("error", "what carried a link's payload could not be closed", fields);
      })
      .finally(() => {
        this.#onOver();
        this.#torn.resolve();
      });
  }

  async #tearDown(): Promise<void> {
    await this.#payload.close();
    if (this.#running.size > 0) await new Promise<void>((resolve) => this.#quiet.push(resolve));
  }

  get torn(): Promise<void> {
    return this.#torn.promise;
  }
}

/** What a pull asks for; else in words what is wrong with it. */
export function pullOf(body: Uint8Array): PullRequest | string {
  const decoded = decodeRequest(body);
  if (!decoded.ok) return decoded.why;
  return decoded.request.op === "pull" ? decoded.request : "it called as a pull";
}

const NUMBER_IN_USE = "it used the number of a request that is under way";
export const BEFORE_HELLO = "it asked before it said hello";
/** Said to who answers on a link that is there for him to ask. */
export const UNEXPECTED_ANSWER = "it answered on a link of its own";

/** How a pull's blocks leave. */
export interface Sender {
  /** Item `index` is answered with this part of the wire and no block. */
  refuse(index: number, body: Uint8Array): void;
  /**
   * A block is lent for item `index`, until `release` of it is called. `isAsked`: its header fits
   * what was asked for. Throws where the header breaks the rules of the wire.
   */
  send(index: number, block: ServedBlock, isAsked: boolean): void;
  /** The pull is given up: what was lent to it comes back as soon as nobody reads it. */
  giveUp(indexes: readonly number[]): void;
}

export interface ServedItemsOptions {
  readonly id: number;
  readonly request: PullRequest;
  readonly peer: PeerIdentity;
  readonly server: PeerServer;
  readonly channel: Pick<ControlChannel<never>, "send" | "isFull" | "room">;
  readonly clock: Clock;
  readonly limits: ChannelLimits;
  readonly log: TransportLog;
}

/**
 * One pull as the side that has the blocks sees it, whatever carries them. Every block that is lent
 * comes back exactly once.
 */
export class ServedItems {
  readonly #options: ServedItemsOptions;
  readonly #sender: Sender;
  readonly #abort = new AbortController();
  readonly #lent = new Map<number, ServedBlock>();
  readonly #left: Set<number>;
  /** What was asked for: a block that is something else is not sent before the asker said so. */
  readonly #asked: OpenItems;
  #lentBytes = 0;
  /** Wakes the one that waits for less to be lent. */
  #wake: (() => void) | null = null;

  constructor(options: ServedItemsOptions, sender: Sender) {
    this.#options = options;
    this.#sender = sender;
    const { namespace, items } = options.request;
    this.#left = new Set(items.keys());
    this.#asked = new OpenItems(namespace, items);
  }

  get isGivenUp(): boolean {
    return this.#abort.signal.aborted;
  }

  /** Serves until all is sent or given up. `ready`: blocks can be sent. Never throws. */
  async run(ready: Promise<boolean>): Promise<void> {
    const { clock, limits, request, channel, id } = this.#options;
    const wholeMs = Math.min(request.deadlineMs, limits.requestMs);
    using _ = clock.after(wholeMs, () => this.cancel());
    if (!(await ready)) return;
    const fault = await this.#serve();
    while (this.#lent.size > 0) await this.#lessLent();
    if (this.#left.size > 0) channel.send({ kind: "end", id, ...fault });
  }

  cancel(): void {
    this.#abort.abort();
    this.#sender.giveUp([...this.#lent.keys()]);
    this.#wake?.();
  }

  /** Whether item `index` was answered, so that what is said of it is late. */
  isAnswered(index: number): boolean {
    return index < this.#options.request.items.length && !this.#left.has(index);
  }

  /** Why what is left was not answered. */
  async #serve(): Promise<{ readonly fault: LinkFaultKind; readonly why: string }> {
    const { server, peer, request, channel, log } = this.#options;
    const { signal } = this.#abort;
    try {
      for await (const served of server.serve(peer, request, signal)) {
        this.#take(served);
        if (this.#left.size === 0) break;
        while (!signal.aborted && this.#isFull()) await this.#lessLent();
        while (!signal.aborted && channel.isFull) await channel.room();
        if (signal.aborted) break;
      }
    } catch (thrown) {
      log("error", "a pull could not be served", { peer: peer.worker, why: messageOf(thrown) });
      return { fault: "broken", why: "the blocks could not be served" };
    }
    if (signal.aborted) return { fault: "stalled", why: "the time for it was over" };
    return { fault: "broken", why: "some blocks were left out" };
  }

  #take(served: Served): void {
    const { log, peer } = this.#options;
    const { index } = served;
    if (!this.#left.has(index)) {
      log("error", "a block was served that is not asked for", { peer: peer.worker, index });
      if (served.kind === "block") served.release();
      return;
    }
    if (served.kind !== "block") {
      this.#sender.refuse(index, encodeRefusal(index, served));
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
    const isAsked = this.#asked.take({ kind: "frame", index, header }) === null;
    this.#sender.send(index, served, isAsked);
    this.#left.delete(index);
  }

  /** Throws where the header breaks the rules of the wire; then the block is let go of. */
  frame(index: number, header: FrameHeader): Uint8Array {
    try {
      return encodeFrame(index, header);
    } catch (thrown) {
      this.release(index);
      throw thrown;
    }
  }

  /** Its header was said, but it will not come. */
  lose(index: number): void {
    const { channel, id } = this.#options;
    channel.send({ kind: "lost", id, index });
    this.release(index);
  }

  /** Nobody reads it any more. */
  release(index: number): void {
    const block = this.#lent.get(index);
    if (block === undefined) return;
    this.#lent.delete(index);
    this.#lentBytes -= block.header.bytes;
    block.release();
    this.#wake?.();
  }

  #isFull(): boolean {
    const { lentMax, lentBytesMax } = this.#options.limits;
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
