import type { WorkerId } from "../../../core/index.ts";
import type { Region } from "../../../native/index.ts";
import type { FrameHeader, PeerAnswer, PeerRequest } from "../../messages.ts";
import type { Called, ConnectionFault, OutgoingPull, PeerConnection } from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import {
  ANSWER_BYTES_MAX,
  decodeAnswer,
  decodePart,
  encodeRequest,
  MessageReader,
  OpenItems,
  PART_BYTES_MAX,
  whyNoAnswer,
  withLength,
} from "../../wire/index.ts";
import { Deadline } from "../connection-state.ts";
import { Code, faultOf, resetCodeOf, resetFault } from "./limits.ts";
import { EARLY_PADDING_BYTES, encodePreface } from "./preface.ts";
import type { Ticket } from "./quic-transport.ts";
import type { QuicContext, Session, Stream } from "./runtime.ts";
import { closeSession, StreamOut, tearStream } from "./runtime.ts";

/** Receives the data of a stream that carries the reply to one request. */
interface Sink {
  /** True if the reply is complete, so that no more data is expected. */
  readonly isComplete: boolean;
  take(chunk: Uint8Array): ConnectionFault | null;
  /** Called when the data that has arrived so far was passed to `take`. */
  pause(): void;
}

interface ExchangeParts extends ClientOptions {
  readonly limit: Deadline;
  readonly sink: Sink;
  onHeard(nowMs: number): void;
  /** Called when the stream has finished. The request may have ended earlier. */
  onOver(): void;
}

/** One request and its reply, on their own stream. */
class Exchange {
  readonly #parts: ExchangeParts;
  readonly #done = Promise.withResolvers<ConnectionFault | null>();
  #stream: Stream | null = null;
  #out: StreamOut | null = null;
  /**
   * Monotonic milliseconds at which the request ended. If data still arrives `stallMs` later, the
   * stream is reset.
   */
  #endMs = Number.POSITIVE_INFINITY;
  #isDone = false;
  #heardMs: number;
  /** Code with which the peer reset the stream. Null if it did not. */
  resetCode: number | null = null;

  constructor(parts: ExchangeParts) {
    this.#parts = parts;
    this.#heardMs = parts.clock.monotonicMs();
  }

  /**
   * Sends the request and waits for the reply. Resolves with null if the reply is complete,
   * otherwise with the fault. The sink receives nothing afterwards. Never rejects.
   */
  async run(preface: Uint8Array, request: Uint8Array): Promise<ConnectionFault | null> {
    const { limit, onOver } = this.#parts;
    if (limit.fault !== null) return limit.fault;
    limit.onOver = () => this.#finish(limit.fault, Code.cancelled);
    void this.#exchange(preface, request).then(onOver);
    const fault = await this.#done.promise;
    limit.onOver = null;
    return fault;
  }

  /** Ends the request with a fault, and resets its stream. */
  end(fault: ConnectionFault): void {
    this.#finish(fault, Code.cancelled);
  }

  /** Ends the request if it has stalled. Called periodically. */
  check(nowMs: number): void {
    const { limits } = this.#parts;
    // A stream without an id waits until the peer permits another stream. That is not a stall.
    if (this.#stream?.id === null) this.#heardMs = nowMs;
    if (!this.#isDone && nowMs - this.#heardMs >= limits.stallMs) {
      this.#finish({ kind: "stalled", why: "no data for too long" }, Code.stalled);
    }
    if (nowMs - this.#endMs >= limits.stallMs) this.#tear(Code.protocol);
  }

  #finish(fault: ConnectionFault | null, code: number = Code.none): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#endMs = this.#parts.clock.monotonicMs();
    if (fault !== null) this.#tear(code);
    this.#done.resolve(fault);
  }

  #tear(code: number): void {
    this.#out?.stop();
    if (this.#stream !== null) tearStream(this.#stream, code);
  }

  async #exchange(preface: Uint8Array, request: Uint8Array): Promise<void> {
    const { session, limits, gcPressure } = this.#parts;
    try {
      const stream = await session.createBidirectionalStream();
      this.#stream = stream;
      const out = new StreamOut(stream, limits);
      this.#out = out;
      const over = () => out.stop();
      stream.closed.then(over, over);
      if (this.#isDone) return this.#tear(Code.cancelled);
      const writing = this.#write(out, preface, request);
      await this.#read(stream);
      this.#finish({ kind: "broken", why: "incomplete answer" }, Code.none);
      await writing;
    } catch (thrown) {
      this.resetCode = resetCodeOf(thrown);
      const fault = this.resetCode === null ? faultOf(thrown) : resetFault(this.resetCode);
      this.#finish(fault, Code.none);
    }
    if (this.#stream !== null) gcPressure.add(this.#stream, 0);
  }

  async #write(out: StreamOut, preface: Uint8Array, request: Uint8Array): Promise<void> {
    if (await out.write(request, preface)) await out.end();
  }

  /**
   * Passes the stream's data to the sink and reads to the stream's end, because the runtime frees a
   * stream only after that.
   */
  async #read(stream: Stream): Promise<void> {
    const { sink, clock, onHeard } = this.#parts;
    for await (const batch of stream) {
      this.#heardMs = clock.monotonicMs();
      onHeard(this.#heardMs);
      for (const chunk of batch) {
        if (this.#isDone) break;
        const fault = sink.take(chunk);
        if (fault !== null) return this.#finish(fault, Code.protocol);
        if (sink.isComplete) this.#finish(null);
      }
      if (!this.#isDone) sink.pause();
    }
  }
}

/** Receives the reply to a request other than a pull: one message. */
export class AnswerSink implements Sink {
  answer: PeerAnswer | null = null;
  readonly #request: Exclude<PeerRequest, { op: "pull" }>;
  readonly #reader = new MessageReader(ANSWER_BYTES_MAX);

  constructor(request: Exclude<PeerRequest, { op: "pull" }>) {
    this.#request = request;
  }

  get isComplete(): boolean {
    return this.answer !== null;
  }

  take(chunk: Uint8Array): ConnectionFault | null {
    const end = this.#reader.take(chunk, 0);
    const { fault, message } = this.#reader;
    if (fault !== null) return { kind: "protocol", why: fault };
    if (message === null) return null;
    if (end < chunk.length) return { kind: "protocol", why: "data after the answer" };
    const decoded = decodeAnswer(message);
    if (!decoded.ok) return { kind: "protocol", why: decoded.why };
    const why = whyNoAnswer(this.#request, decoded.answer);
    if (why !== null) return { kind: "protocol", why };
    this.answer = decoded.answer;
    return null;
  }

  pause(): void {}
}

/** A block of which the header was received and the payload is being received. */
interface Coming {
  readonly index: number;
  readonly header: FrameHeader;
  /** Memory reserved for the payload, of exactly the payload's length. */
  readonly place: Uint8Array;
  bytes: number;
  /** Payload bytes of this block that were reported to the caller. */
  reported: number;
}

/**
 * Receives the parts of a pull's reply, and copies payload to the memory reserved for the blocks.
 */
class PullSink implements Sink {
  readonly #pull: OutgoingPull;
  readonly #region: Region;
  readonly #reader = new MessageReader(PART_BYTES_MAX);
  readonly #open: OpenItems;
  #coming: Coming | null = null;

  constructor(pull: OutgoingPull, region: Region) {
    this.#pull = pull;
    this.#region = region;
    this.#open = new OpenItems(pull.namespace, pull.items);
  }

  /** True if nothing was received yet, so that the request can be sent again. */
  get isFresh(): boolean {
    return this.#open.size === this.#pull.items.length && !this.#reader.within;
  }

  get isComplete(): boolean {
    return this.#open.size === 0 && this.#coming === null;
  }

  take(chunk: Uint8Array): ConnectionFault | null {
    for (let at = 0; at < chunk.length; ) {
      if (this.isComplete) return { kind: "protocol", why: "data after the last answer" };
      if (this.#coming !== null) {
        at += this.#fill(this.#coming, chunk, at);
        continue;
      }
      at = this.#reader.take(chunk, at);
      const { fault, message } = this.#reader;
      const why = fault ?? (message === null ? null : this.#part(message));
      if (why !== null) return { kind: "protocol", why };
    }
    return null;
  }

  /** Reports the payload bytes received since the last report to the caller. */
  pause(): void {
    const coming = this.#coming;
    if (coming === null || coming.reported === coming.bytes) return;
    this.#pull.onBytes(coming.index, coming.bytes - coming.reported);
    coming.reported = coming.bytes;
  }

  #part(message: Uint8Array): string | null {
    const decoded = decodePart(message);
    if (!decoded.ok) return decoded.why;
    const { part } = decoded;
    const { index } = part;
    const why = this.#open.take(part);
    if (why !== null) return why;
    if (part.kind === "refusal") {
      this.#pull.onItem(index, part.refusal);
      return null;
    }
    const { header } = part;
    const place = this.#region.span(this.#pull.items[index].offset, header.bytes);
    this.#coming = { index, header, place, bytes: 0, reported: 0 };
    return null;
  }

  /**
   * Copies payload from `chunk`, starting at `at`, to the block's memory. Returns the number of
   * bytes copied.
   */
  #fill(coming: Coming, chunk: Uint8Array, at: number): number {
    const bytes = Math.min(coming.place.length - coming.bytes, chunk.length - at);
    const isAll = at === 0 && bytes === chunk.length;
    coming.place.set(isAll ? chunk : chunk.subarray(at, at + bytes), coming.bytes);
    coming.bytes += bytes;
    if (coming.bytes === coming.place.length) this.#finish(coming);
    return bytes;
  }

  #finish(coming: Coming): void {
    this.pause();
    this.#coming = null;
    const { index, header } = coming;
    const checksum = this.#region.checksum(this.#pull.items[index].offset, header.bytes);
    this.#pull.onItem(index, { kind: "came", header, checksum });
  }
}

type CallRequest = Exclude<PeerRequest, { op: "pull" }>;

export interface ClientOptions extends QuicContext {
  readonly session: Session;
  /** Name of the worker that this host dialled. */
  readonly worker: WorkerId;
  /** Session ticket with which the connection began. Null if there was none. */
  readonly ticket: Ticket | null;
  /** Signature that proves that this host has its certificate's private key. */
  readonly proof: Uint8Array;
}

/**
 * Client's side of a QUIC connection. If it begins with a session ticket, pulls can be sent at
 * once, in the first packet (0-RTT); other requests wait for the handshake.
 */
export class ClientConnection implements PeerConnection {
  readonly transport = "quic";
  readonly ended: Promise<ConnectionFault>;
  /**
   * Resolves when the TLS handshake is complete: with null if the peer was authorized, otherwise
   * with the reason.
   */
  readonly ready: Promise<ConnectionFault | null>;
  readonly #parts: ClientOptions;
  readonly #exchanges = new Set<Exchange>();
  readonly #end = Promise.withResolvers<ConnectionFault>();
  #identity: PeerIdentity | null;
  #certificate: Uint8Array | null = null;
  #newTicket: Uint8Array | null = null;
  #token: Uint8Array | null = null;
  #fault: ConnectionFault | null = null;
  #isReady = false;
  #isEarlyRefused = false;
  #isHeard = false;
  #heardMs: number;
  #rttMs: number | null = null;
  readonly #checkTimer: Disposable;
  #requests = 0;
  /** Monotonic milliseconds at which the last request ended. */
  #restMs: number;
  #closing: Promise<void> | null = null;

  constructor(parts: ClientOptions) {
    this.#parts = parts;
    this.#identity = parts.ticket?.identity ?? null;
    this.#heardMs = parts.clock.monotonicMs();
    this.#restMs = this.#heardMs;
    this.ended = this.#end.promise;
    const { session } = parts;
    session.onsessionticket = (ticket) => {
      this.#newTicket = ticket as unknown as Uint8Array;
    };
    session.onnewtoken = (token) => {
      this.#token = token;
    };
    session.closed.then(
      () => this.#over(faultOf(undefined)),
      (thrown) => this.#over(faultOf(thrown)),
    );
    const { stallMs, idleMs } = parts.limits;
    this.#checkTimer = parts.clock.every(Math.max(1, Math.min(stallMs, idleMs) / 4), () =>
      this.#check(),
    );
    this.ready = this.#open();
  }

  get identity(): PeerIdentity {
    return this.#identity!;
  }

  get resumed(): boolean {
    return this.#parts.ticket !== null && !this.#isEarlyRefused;
  }

  get rttMs(): number | null {
    const { session } = this.#parts;
    if (this.#isHeard && !session.destroyed) {
      const ns = Number(session.stats.minRtt);
      if (ns > 0) this.#rttMs = ns / 1e6;
    }
    return this.#rttMs;
  }

  get fault(): ConnectionFault | null {
    return this.#fault;
  }

  /**
   * Session ticket with which the next connection to this peer can begin, and its lifetime in
   * milliseconds. Null if there is none.
   */
  get nextTicket(): { readonly ticket: Ticket; readonly ms: number } | null {
    const { limits, clock } = this.#parts;
    if (!this.#isReady || this.#newTicket === null) return null;
    const ms = limits.ticketMs - (clock.monotonicMs() - this.#heardMs);
    const certificate = this.#certificate!;
    const ticket = { ticket: this.#newTicket, token: this.#token, certificate };
    return { ticket: { ...ticket, identity: this.identity }, ms };
  }

  async #open(): Promise<ConnectionFault | null> {
    const { session, trust, worker } = this.#parts;
    let refusal: string;
    try {
      const { validationErrorReason: invalid, earlyDataAccepted } = await session.opened;
      this.#isEarlyRefused = !earlyDataAccepted;
      const certificate = session.peerCertificate;
      const authorized =
        certificate === undefined ? null : trust.authorize(certificate.raw, worker);
      if (authorized?.ok && invalid === undefined) {
        this.#identity = authorized.identity;
        this.#certificate = certificate!.raw;
        this.#isReady = true;
        this.#watch(authorized.identity, certificate!.raw);
        return this.#fault;
      }
      refusal =
        invalid ?? (authorized?.ok === false ? authorized.why : "it presented no certificate");
    } catch (thrown) {
      const fault = faultOf(thrown);
      const isGone = fault.kind === "broken";
      this.#over(isGone ? { kind: "unreachable", why: fault.why } : fault);
      return this.#fault;
    }
    this.#over({ kind: "refused", why: refusal }, Code.refused);
    return this.#fault;
  }

  #watch(identity: PeerIdentity, der: Uint8Array): void {
    const refuse = (why: string) => this.#over({ kind: "refused", why }, Code.refused);
    const { trusted, worker: dialled } = this.#parts;
    const watched = trusted.watch({ identity, der, dialled, refuse });
    void this.ended.then(() => watched[Symbol.dispose]());
  }

  async call(
    request: CallRequest,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called> {
    using limit = new Deadline(this.#parts.clock, options.deadlineMs, options.signal);
    const sink = new AnswerSink(request);
    const fault = (await this.#untilReady(limit)) ?? (await this.#ask(request, sink, limit));
    if (fault !== null) return { ok: false, fault };
    return { ok: true, answer: sink.answer! };
  }

  async pull(pull: OutgoingPull): Promise<ConnectionFault | null> {
    const { clock, region } = this.#parts;
    if (pull.items.length === 0) return this.#fault;
    using limit = new Deadline(clock, pull.deadlineMs, pull.signal);
    const request = () => {
      const { namespace, items } = pull;
      return { op: "pull", namespace, items, deadlineMs: limit.leftMs } as const;
    };
    if (this.resumed && !this.#isReady && this.#fault === null) {
      const sink = new PullSink(pull, region);
      const fault = await this.#ask(request(), sink, limit, EARLY_PADDING_BYTES);
      if (fault === null) return null;
      const late = await this.#untilReady(limit);
      if (late !== null) return late;
      // If the peer refused the session ticket, it has ignored the first packets, so the request is
      // sent again.
      if (!this.#isEarlyRefused || !sink.isFresh) return fault;
    }
    const late = await this.#untilReady(limit);
    return late ?? (await this.#ask(request(), new PullSink(pull, region), limit));
  }

  /**
   * Waits until the handshake is complete. Resolves with null if the peer was authorized, otherwise
   * with the fault.
   */
  async #untilReady(limit: Deadline): Promise<ConnectionFault | null> {
    if (limit.fault !== null || this.#isReady) return limit.fault ?? this.#fault;
    const { promise, resolve } = Promise.withResolvers<ConnectionFault | null>();
    limit.onOver = () => resolve(limit.fault);
    void this.ready.then(() => resolve(this.#fault));
    const fault = await promise;
    limit.onOver = null;
    return fault;
  }

  async #ask(
    request: PeerRequest,
    sink: Sink,
    limit: Deadline,
    paddingBytes = 0,
  ): Promise<ConnectionFault | null> {
    const { proof } = this.#parts;
    const exchange = new Exchange({
      ...this.#parts,
      sink,
      limit,
      onHeard: (nowMs) => {
        this.#isHeard = true;
        this.#heardMs = nowMs;
      },
      onOver: () => void this.#exchanges.delete(exchange),
    });
    this.#exchanges.add(exchange);
    this.#requests++;
    const preface = encodePreface(proof, paddingBytes);
    const fault = await exchange.run(preface, withLength(encodeRequest(request)));
    this.#requests--;
    this.#restMs = this.#parts.clock.monotonicMs();
    // If the connection has ended, its streams end too, but only the connection knows the reason.
    if (fault?.kind === "broken" && exchange.resetCode === null) return this.#fault ?? fault;
    return fault;
  }

  /** Ends stalled requests, and closes the connection if it has been idle for too long. */
  #check(): void {
    const { clock, limits } = this.#parts;
    const nowMs = clock.monotonicMs();
    for (const exchange of this.#exchanges) exchange.check(nowMs);
    if (this.#requests > 0 || nowMs - this.#restMs < limits.idleMs) return;
    void this.#close({ kind: "closed", why: "closed after an idle time" });
  }

  #over(fault: ConnectionFault, code: number = Code.none): void {
    if (this.#fault !== null) return;
    void this.rttMs;
    this.#fault = fault;
    this.#checkTimer[Symbol.dispose]();
    for (const exchange of this.#exchanges) exchange.end(fault);
    const { session } = this.#parts;
    if (fault.kind !== "closed" && !session.destroyed) {
      session.destroy(undefined, { code, type: "application" });
    }
    this.#end.resolve(fault);
  }

  #close(fault: ConnectionFault): Promise<void> {
    this.#closing ??= (async () => {
      const { session, clock, limits } = this.#parts;
      this.#over(fault);
      await closeSession(session, Code.none, clock, limits.closeMs);
    })();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#close({ kind: "closed", why: "closed by this side" });
  }
}
