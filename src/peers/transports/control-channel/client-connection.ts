import type { Clock } from "../../../core/index.ts";
import type { FrameHeader, ItemRefusal, PeerRequest } from "../../messages.ts";
import type {
  Called,
  ConnectionFault,
  ConnectionFaultKind,
  ItemResult,
  Landed,
  OutgoingPull,
  PeerConnection,
  TransportName,
} from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import {
  decodeAnswer,
  encodeRequest,
  OpenItems,
  type Part,
  whyNoAnswer,
} from "../../wire/index.ts";
import { Deadline, RequestSlots } from "../connection-state.ts";
import { type CommonMessage, isCommon, type OwnMessage } from "./codec.ts";
import type { ChannelEnd, ChannelHandler, ControlChannel } from "./control-channel.ts";
import { theirFault } from "./dial.ts";
import { type ChannelLimits, KeepAlive } from "./limits.ts";

type CallRequest = Exclude<PeerRequest, { op: "pull" }>;

/** A call without an answer yet. */
interface Call {
  readonly request: CallRequest;
  readonly settle: (called: Called) => void;
}

/** Carries the payload of a connection's pulls. */
export interface ClientPayload<Own, Pull extends ClientPull> {
  /** Number of 32-bit transfer numbers used so far. */
  readonly used: number;
  /** Resolves when payload cannot be carried any more. */
  readonly ended: Promise<ConnectionFault>;
  /** Starts a pull: sends its request. */
  begin(id: number, pull: OutgoingPull, deadline: Deadline): Pull;
  /**
   * Handles a message specific to the transport. `pull`: the pull that it names, unless that is
   * over. The reason the message is invalid; null: valid.
   */
  take(message: Own, pull: Pull | undefined): string | null;
  /** Closes it. Resolves when nothing writes any more. */
  close(): Promise<void>;
}

/** Requests have 32-bit numbers. A connection that has used most of them ends. */
const NUMBERS_MAX = 2 ** 32 - 2 ** 24;

export interface ClientConnectionOptions<Own, Pull extends ClientPull> {
  readonly transport: TransportName;
  readonly identity: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly payload: ClientPayload<Own, Pull>;
  readonly clock: Clock;
  readonly limits: ChannelLimits;
  /** Maximum concurrent requests that the server allows. */
  readonly requests: number;
  /** Initial round trip in milliseconds. */
  readonly rttMs: number;
}

/** The client's side of a connection: requests and their answers, without the payload. */
export class ClientConnection<Own extends OwnMessage, Pull extends ClientPull>
  implements PeerConnection, ChannelHandler<Own>
{
  readonly identity: PeerIdentity;
  readonly transport: TransportName;
  readonly resumed = false;
  readonly ended: Promise<ConnectionFault>;
  rttMs: number;
  readonly #clock: Clock;
  readonly #channel: ControlChannel<Own>;
  readonly #payload: ClientPayload<Own, Pull>;
  readonly #limits: ChannelLimits;
  readonly #calls = new Map<number, Call>();
  readonly #pulls = new Map<number, Pull>();
  readonly #slots: RequestSlots;
  readonly #keepAlive: KeepAlive;
  #progress: Disposable | null = null;
  #nextId = 0;
  #fault: ConnectionFault | null = null;
  #onEnd!: (fault: ConnectionFault) => void;
  /** Resolves when the payload is closed, so that no pull writes any more. */
  #torn: Promise<void> = Promise.resolve();

  constructor(options: ClientConnectionOptions<Own, Pull>) {
    const { identity, transport, channel, payload, clock, limits } = options;
    this.identity = identity;
    this.transport = transport;
    this.rttMs = options.rttMs;
    this.#clock = clock;
    this.#channel = channel;
    this.#payload = payload;
    this.#limits = limits;
    this.#slots = new RequestSlots(options.requests, limits.waitingMax);
    this.ended = new Promise((resolve) => {
      this.#onEnd = resolve;
    });
    this.#keepAlive = new KeepAlive({
      channel,
      clock,
      limits,
      asks: true,
      onRtt: (ms) => {
        this.rttMs = Math.min(this.rttMs, ms);
      },
      onDead: (why) => this.end("stalled", why),
    });
    void payload.ended.then(({ kind, why }) => this.end(kind, why));
  }

  get fault(): ConnectionFault | null {
    return this.#fault;
  }

  async call(
    request: CallRequest,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called> {
    using deadline = new Deadline(this.#clock, options.deadlineMs, options.signal);
    const refused = await this.#takeSlot(deadline);
    if (refused !== null) return { ok: false, fault: refused };
    const id = this.#nextId++;
    try {
      return await this.#ask(id, request, deadline);
    } finally {
      this.#calls.delete(id);
      this.#slots.give();
    }
  }

  #ask(id: number, request: CallRequest, deadline: Deadline): Promise<Called> {
    const { promise, resolve } = Promise.withResolvers<Called>();
    this.#calls.set(id, { request, settle: resolve });
    deadline.onOver = (fault) => {
      this.#channel.send({ kind: "cancel", id });
      resolve({ ok: false, fault });
    };
    this.#channel.send({ kind: "call", id, body: encodeRequest(request) });
    return promise;
  }

  async pull(pull: OutgoingPull): Promise<ConnectionFault | null> {
    if (pull.items.length === 0) return null;
    using deadline = new Deadline(this.#clock, pull.deadlineMs, pull.signal);
    const refused = await this.#takeSlot(deadline);
    if (refused !== null) return refused;
    try {
      const id = this.#nextId++;
      const asked = this.#payload.begin(id, pull, deadline);
      this.#pulls.set(id, asked);
      this.#watchProgress();
      const fault = await asked.over;
      this.#pulls.delete(id);
      return fault;
    } finally {
      if (this.#pulls.size === 0) this.#stopWatching();
      this.#slots.give();
    }
  }

  /** Takes a request slot before the deadline. Returns null, or why no slot was taken. */
  async #takeSlot(deadline: Deadline): Promise<ConnectionFault | null> {
    const used = Math.max(this.#nextId, this.#payload.used);
    if (used > NUMBERS_MAX) this.end("closed", "request numbers are used up");
    if (this.#fault !== null) return this.#fault;
    if (deadline.fault !== null) return deadline.fault;
    if (this.#slots.isCrowded) return { kind: "stalled", why: "too many waiting requests" };
    const got = await this.#slots.take(deadline);
    if (!got) return this.#fault ?? deadline.fault;
    if (this.#fault === null && deadline.fault === null) return null;
    this.#slots.give();
    return this.#fault ?? deadline.fault;
  }

  #watchProgress(): void {
    const { progressMs, stallMs } = this.#limits;
    this.#progress ??= this.#clock.every(progressMs, () => {
      for (const pull of this.#pulls.values()) pull.count(stallMs);
    });
  }

  #stopWatching(): void {
    this.#progress?.[Symbol.dispose]();
    this.#progress = null;
  }

  /** Handles a message of the server. */
  receive(message: Own | CommonMessage): void {
    const wrong = isCommon(message) ? this.#take(message) : this.#takeOwn(message);
    if (wrong !== null) this.end("protocol", wrong);
  }

  #takeOwn(message: Own): string | null {
    const { id } = message;
    if (id === undefined) return UNEXPECTED_REQUEST;
    const pull = this.#pulls.get(id);
    return this.#payload.take(message, pull) ?? (pull === undefined ? this.#mayName(id) : null);
  }

  /** The reason the message is invalid; null: valid. */
  #take(message: CommonMessage): string | null {
    switch (message.kind) {
      case "answer":
        return this.#takeAnswer(message.id, message.body);
      case "lost":
        return this.#pulls.get(message.id)?.takeLost(message.index) ?? this.#mayName(message.id);
      case "busy": {
        const { retryAfterMs } = message;
        this.#pulls.get(message.id)?.takeBusy({ kind: "busy", retryAfterMs });
        return this.#mayName(message.id);
      }
      case "end": {
        const { fault, why } = message;
        this.#pulls.get(message.id)?.takeEnd(theirFault(fault, why));
        return this.#mayName(message.id);
      }
      case "ping":
        this.#channel.send({ kind: "pong", nonce: message.nonce });
        return null;
      case "pong":
        this.#keepAlive.answered(message.nonce);
        return null;
      case "bye":
        this.end(
          message.fault === "refused" ? "refused" : "broken",
          `peer reported: ${message.why}`,
        );
        return null;
      default:
        return UNEXPECTED_REQUEST;
    }
  }

  /**
   * Null: the request exists or existed, so the message may be late. Otherwise the protocol error.
   */
  #mayName(id: number): string | null {
    return id < this.#nextId ? null : "answer to a request that was never sent";
  }

  #takeAnswer(id: number, body: Uint8Array): string | null {
    const call = this.#calls.get(id);
    if (call === undefined) return this.#mayName(id);
    const decoded = decodeAnswer(body);
    if (!decoded.ok) return decoded.why;
    const wrong = whyNoAnswer(call.request, decoded.answer);
    if (wrong !== null) return wrong;
    call.settle({ ok: true, answer: decoded.answer });
    return null;
  }

  channelEnded(end: ChannelEnd): void {
    this.end(end.kind, end.why);
  }

  end(kind: ConnectionFaultKind, why: string): void {
    if (this.#fault !== null) return;
    const fault: ConnectionFault = { kind, why };
    this.#fault = fault;
    this.#keepAlive[Symbol.dispose]();
    this.#stopWatching();
    this.#slots.close();
    for (const { settle } of [...this.#calls.values()]) settle({ ok: false, fault });
    for (const pull of this.#pulls.values()) pull.fail(fault);
    if (kind === "protocol" || kind === "closed" || kind === "refused")
      this.#channel.close({ kind: "bye", fault: kind, why });
    else this.#channel.destroy();
    this.#torn = this.#payload.close();
    this.#onEnd(fault);
  }

  /** Resolves when no pull writes any more. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.end("closed", "closed by this side");
    await this.#torn;
    await Promise.all([...this.#pulls.values()].map((pull) => pull.over));
  }
}

/** Reported to a peer that sends a request to a client. */
export const UNEXPECTED_REQUEST = "request received on a client connection";

/** One side is overloaded or out of time; a retry may succeed. */
export const OVERLOADED: ItemRefusal = { kind: "busy", retryAfterMs: 50 };

export interface RequestedItem extends Landed {
  readonly index: number;
  /** Number of the writer that may write to the item's place; null: none. */
  writer: number | null;
  /** Runs instead of the writer's continuation once the writer has ended. */
  next: (() => void) | null;
  header: FrameHeader | null;
  /** Bytes reported to the caller. */
  reported: number;
  isDone: boolean;
}

/** Writes payload to the items' places. */
export interface Writers {
  /** Bytes written so far by a running writer; 0 if it has ended. */
  arrived(writer: number): number;
  /** Ends the writer as soon as possible. */
  cancel(writer: number): void;
}

export interface ClientPullOptions {
  readonly id: number;
  readonly pull: OutgoingPull;
  readonly deadline: Deadline;
  readonly clock: Clock;
  readonly writers: Writers;
  readonly channel: Pick<ControlChannel<never>, "send">;
}

/**
 * One pull on the client's side, independent of how its payload is carried.
 *
 * States: open → settled (all items answered, or a fault) → over (nothing writes any more).
 */
export abstract class ClientPull {
  /** Resolves when the pull is over. */
  readonly over: Promise<ConnectionFault | null>;
  readonly all: readonly RequestedItem[];
  readonly #open: OpenItems;
  readonly #pull: OutgoingPull;
  readonly #options: ClientPullOptions;
  #resolve!: (fault: ConnectionFault | null) => void;
  #unanswered: number;
  /** Number of running writers. */
  #writing = 0;
  #fault: ConnectionFault | null = null;
  /** The fault that the server reported; it counts after the outstanding payload has arrived. */
  #end: ConnectionFault | null = null;
  #movedMs: number;
  #isOver = false;

  constructor(options: ClientPullOptions) {
    const { pull, clock, deadline } = options;
    this.#pull = pull;
    this.#options = options;
    this.#open = new OpenItems(pull.namespace, pull.items);
    this.#unanswered = pull.items.length;
    this.#movedMs = clock.monotonicMs();
    this.over = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.all = pull.items.map((item, index) => ({
      ...item,
      index,
      writer: null,
      next: null,
      header: null,
      reported: 0,
      isDone: false,
    }));
    deadline.onOver = (fault) => this.giveUp(fault);
  }

  /** The request's message body. */
  protected get body(): Uint8Array {
    const { namespace, items } = this.#pull;
    const { leftMs: deadlineMs } = this.#options.deadline;
    return encodeRequest({ op: "pull", namespace, items, deadlineMs });
  }

  /** Null: open, or all items answered. */
  get fault(): ConnectionFault | null {
    return this.#fault;
  }

  /** Cancels the pull at the server, and all writers. */
  giveUp(fault: ConnectionFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    const { channel, id } = this.#options;
    channel.send({ kind: "cancel", id });
    this.fail(fault);
  }

  /** The connection has ended, or is ending. */
  fail(fault: ConnectionFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    this.#fault = fault;
    for (const { writer } of this.all) if (writer !== null) this.#options.writers.cancel(writer);
    this.#settle();
  }

  /** Reports received bytes to the caller; gives up if nothing arrives. */
  count(stallMs: number): void {
    if (this.#fault !== null) return;
    const { writers, clock } = this.#options;
    for (const item of this.all) {
      const { writer, next } = item;
      if (writer !== null && next === null) this.#report(item, writers.arrived(writer));
    }
    if (clock.monotonicMs() - this.#movedMs < stallMs) return;
    this.giveUp({ kind: "stalled", why: `no data for ${stallMs} ms` });
  }

  #moved(): void {
    this.#movedMs = this.#options.clock.monotonicMs();
  }

  /**
   * Handles the answer for one item after comparing it with the request. The reason it is invalid;
   * null: valid.
   */
  take(part: Part): string | null {
    const wrong = this.#open.take(part);
    if (wrong !== null) return wrong;
    this.#moved();
    const item = this.all[part.index]!;
    if (part.kind === "refusal") this.refuse(item, part.refusal);
    else item.header = part.header;
    return null;
  }

  /** A block whose header was received will not arrive. */
  takeLost(index: number): string | null {
    const item = this.all[index];
    if (item === undefined || item.header === null) return "lost block without a header";
    if (this.#fault === null && !item.isDone) this.refuse(item, OVERLOADED);
    return null;
  }

  /** The server is too busy to start the pull. */
  takeBusy(refusal: ItemRefusal): void {
    if (this.#fault !== null) return;
    this.#moved();
    for (const item of this.all) if (this.#open.has(item.index)) this.refuse(item, refusal);
  }

  /** No more headers will come; announced payload still arrives. */
  takeEnd(fault: ConnectionFault): void {
    this.#end ??= fault;
    this.#failAtEnd();
  }

  #failAtEnd(): void {
    if (this.#end === null || this.#unanswered > this.#open.size) return;
    this.fail(this.#end);
  }

  /**
   * A writer writes to the item's place until `coming` resolves; then `then` runs, unless `retire`
   * has replaced it.
   */
  write<Result>(
    item: RequestedItem,
    writer: number,
    coming: Promise<Result>,
    then: (result: Result) => void,
  ): void {
    item.writer = writer;
    this.#writing++;
    void coming.then((result) => {
      item.writer = null;
      this.#writing--;
      const { next } = item;
      item.next = null;
      if (this.#fault !== null) this.#settle();
      else if (next !== null) next();
      else then(result);
    });
  }

  /** Cancels the item's writer, and runs `next` when it has ended. */
  retire(item: RequestedItem, next: () => void): void {
    if (item.writer === null) {
      next();
      return;
    }
    item.next = next;
    this.#options.writers.cancel(item.writer);
  }

  refuse(item: RequestedItem, refusal: ItemRefusal): void {
    this.retire(item, () => this.finish(item, refusal));
  }

  came(item: RequestedItem, header: FrameHeader, checksum: bigint): void {
    this.#report(item, header.bytes);
    this.finish(item, { kind: "came", header, checksum });
  }

  #report(item: RequestedItem, arrived: number): void {
    if (arrived <= item.reported) return;
    const more = arrived - item.reported;
    item.reported = arrived;
    this.#moved();
    this.#pull.onBytes(item.index, more);
  }

  finish(item: RequestedItem, result: ItemResult): void {
    if (item.isDone) return;
    item.isDone = true;
    this.#unanswered--;
    this.#pull.onItem(item.index, result);
    this.#failAtEnd();
    this.#settle();
  }

  #settle(): void {
    const isSettled = this.#fault !== null || this.#unanswered === 0;
    if (!isSettled || this.#writing > 0 || this.#isOver) return;
    this.#isOver = true;
    this.#options.deadline.onOver = null;
    this.#resolve(this.#fault);
  }
}
