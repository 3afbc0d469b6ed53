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

/** A request, other than a pull, that has no reply yet. */
interface Call {
  readonly request: CallRequest;
  readonly settle: (called: Called) => void;
}

/** Carries the payload of a client's pulls. Each transport implements it. */
export interface ClientPayload<Own, Pull extends ClientPull> {
  /** Number of 32-bit transfer numbers used so far on this connection. */
  readonly used: number;
  /** Resolves with the reason when payload cannot be carried any more. */
  readonly ended: Promise<ConnectionFault>;
  /** Sends the request of a pull, and starts to receive its blocks. */
  begin(id: number, pull: OutgoingPull, deadline: Deadline): Pull;
  /**
   * Handles a message that only this transport defines. `pull`: the running pull that the message
   * names, if any. Returns the reason if the message is invalid, otherwise null.
   */
  take(message: Own, pull: Pull | undefined): string | null;
  /** Closes the payload connection. Resolves when nothing writes to memory any more. */
  close(): Promise<void>;
}

/**
 * Maximum number of requests on a connection. Requests have 32-bit numbers that are not reused, so
 * the connection is closed when this number is reached.
 */
const NUMBERS_MAX = 2 ** 32 - 2 ** 24;

export interface ClientConnectionOptions<Own, Pull extends ClientPull> {
  readonly transport: TransportName;
  readonly identity: PeerIdentity;
  readonly channel: ControlChannel<Own>;
  readonly payload: ClientPayload<Own, Pull>;
  readonly clock: Clock;
  readonly limits: ChannelLimits;
  /** Maximum concurrent requests that the server permits. */
  readonly requests: number;
  /** Round trip of the hello in milliseconds. */
  readonly rttMs: number;
}

/**
 * Client's side of a connection: sends requests and receives replies. `ClientPayload` carries the
 * payload.
 */
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
  /** Resolves when the payload connection is closed, so that no pull writes to memory any more. */
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

  /**
   * Waits for one of the request slots until the deadline. Returns null, or the reason if it gets
   * none.
   */
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

  /** Handles a message from the server. */
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

  /**
   * Handles a message that all transports define. Returns the reason if it is invalid, otherwise
   * null.
   */
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
   * Checks the request number in a message. Returns null if the number was used, possibly for a
   * request that is over; otherwise the protocol error.
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

  /** Closes the connection. Resolves when no pull writes to memory any more. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.end("closed", "closed by this side");
    await this.#torn;
    await Promise.all([...this.#pulls.values()].map((pull) => pull.over));
  }
}

/** Fault reported to a peer that sends a request on a connection that this host opened. */
export const UNEXPECTED_REQUEST = "request received on a client connection";

/** Refusal used if one side is overloaded or out of time. The client may try again. */
export const OVERLOADED: ItemRefusal = { kind: "busy", retryAfterMs: 50 };

export interface RequestedItem extends Landed {
  readonly index: number;
  /**
   * Number of the transfer or read that may write to the item's reserved memory. Null if there is
   * none.
   */
  writer: number | null;
  /**
   * Runs when the current transfer has ended after `retire`, in place of its normal continuation.
   */
  next: (() => void) | null;
  header: FrameHeader | null;
  /** Payload bytes that were reported to the caller with `onBytes`. */
  reported: number;
  isDone: boolean;
}

/** Transfers or reads ("writers") that write payload to the memory reserved for blocks. */
export interface Writers {
  /** Returns the bytes written so far by a running writer. 0 if the writer has ended. */
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
 * Client's side of one pull, independent of how payload is carried.
 *
 * States: open → settled (each block was received or refused, or a fault) → over (nothing writes to
 * memory any more).
 */
export abstract class ClientPull {
  /** Resolves when the pull is over: with null, or the fault that ended it. */
  readonly over: Promise<ConnectionFault | null>;
  readonly all: readonly RequestedItem[];
  readonly #open: OpenItems;
  readonly #pull: OutgoingPull;
  readonly #options: ClientPullOptions;
  #resolve!: (fault: ConnectionFault | null) => void;
  #unanswered: number;
  /** Number of writers that have not ended. */
  #writing = 0;
  #fault: ConnectionFault | null = null;
  /**
   * Fault with which the server ended the pull. Takes effect after the payload of all announced
   * blocks has arrived.
   */
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

  /** Encoded pull request, without the fields that a transport adds. */
  protected get body(): Uint8Array {
    const { namespace, items } = this.#pull;
    const { leftMs: deadlineMs } = this.#options.deadline;
    return encodeRequest({ op: "pull", namespace, items, deadlineMs });
  }

  /** Fault that ended the pull. Null if it is open, or if each block was received or refused. */
  get fault(): ConnectionFault | null {
    return this.#fault;
  }

  /** Cancels the pull: notifies the server and cancels all writers. */
  giveUp(fault: ConnectionFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    const { channel, id } = this.#options;
    channel.send({ kind: "cancel", id });
    this.fail(fault);
  }

  /** Fails the pull because its connection has ended or is ending, and cancels all writers. */
  fail(fault: ConnectionFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    this.#fault = fault;
    for (const { writer } of this.all) if (writer !== null) this.#options.writers.cancel(writer);
    this.#settle();
  }

  /**
   * Reports newly received bytes to the caller. Cancels the pull if no data has arrived for
   * `stallMs` milliseconds.
   */
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
   * Handles a block's header or refusal, after comparing it with the request. Returns the reason if
   * it is invalid, otherwise null.
   */
  take(part: Part): string | null {
    const wrong = this.#open.take(part);
    if (wrong !== null) return wrong;
    this.#moved();
    const item = this.all[part.index];
    if (part.kind === "refusal") this.refuse(item, part.refusal);
    else item.header = part.header;
    return null;
  }

  /**
   * Refuses a block that will not arrive, although its header was received. Returns the reason if
   * the server's message is invalid, otherwise null.
   */
  takeLost(index: number): string | null {
    const item = this.all[index];
    if (item === undefined || item.header === null) return "lost block without a header";
    if (this.#fault === null && !item.isDone) this.refuse(item, OVERLOADED);
    return null;
  }

  /** Refuses all blocks without a reply, because the server is too busy for this pull. */
  takeBusy(refusal: ItemRefusal): void {
    if (this.#fault !== null) return;
    this.#moved();
    for (const item of this.all) if (this.#open.has(item.index)) this.refuse(item, refusal);
  }

  /**
   * Handles the server's last message about this pull. Blocks whose headers were received may still
   * arrive.
   */
  takeEnd(fault: ConnectionFault): void {
    this.#end ??= fault;
    this.#failAtEnd();
  }

  #failAtEnd(): void {
    if (this.#end === null || this.#unanswered > this.#open.size) return;
    this.fail(this.#end);
  }

  /**
   * Registers a writer for the item's reserved memory. `coming` resolves when the writer has ended;
   * `then` runs afterwards, unless `retire` was called in the meantime.
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

  /** Cancels the item's writer, if any. Runs `next` when the writer has ended. */
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
