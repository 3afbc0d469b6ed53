import { messageOf, type WorkerId } from "../../../core/index.ts";
import type { PeerAnswer, PeerRequest } from "../../messages.ts";
import type { PeerServer, Served } from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import {
  decodeRequest,
  encodeAnswer,
  encodeFrame,
  encodeRefusal,
  lengthOf,
  MessageReader,
  REQUEST_BYTES_MAX,
  withLength,
} from "../../wire/index.ts";
import { RequestSlots } from "../connection-state.ts";
import { Code, faultOf } from "./limits.ts";
import { isProof, PrefaceReader } from "./preface.ts";
import type { QuicContext, Session, Stream } from "./runtime.ts";
import { closeSession, StreamOut, tearStream } from "./runtime.ts";

/**
 * Checks a stream's proof and returns the identity of the peer. If the proof is refused, returns
 * null and ends the connection.
 */
type Authorize = (proof: Uint8Array) => Promise<PeerIdentity | null>;

type Pull = Extract<PeerRequest, { op: "pull" }>;

/**
 * Returns whether a reply may be so large that only a limited number may be in memory. Other
 * replies are small.
 */
function mayBeLong({ op }: PeerAnswer): boolean {
  return op === "summary" || op === "find";
}

/** One request of a peer, and the reply, on their own stream. */
class ServedStream {
  readonly #stream: Stream;
  readonly #host: ConnectionHost;
  /** Limits how many large replies of one connection are in memory at the same time. */
  readonly #longAnswers: RequestSlots;
  readonly #over = new AbortController();
  readonly #out: StreamOut;
  /** Monotonic milliseconds at which the request's time limit ends. */
  #endMs: number;
  /**
   * Monotonic milliseconds at which the peer last read data, and the number of pieces written then.
   */
  #movedMs: number;
  #taken = 0;
  #isAnswered = false;
  #sentBytes = 0;

  constructor(stream: Stream, host: ConnectionHost, longAnswers: RequestSlots) {
    this.#stream = stream;
    this.#host = host;
    this.#longAnswers = longAnswers;
    this.#out = new StreamOut(stream, host.limits);
    this.#movedMs = host.clock.monotonicMs();
    this.#endMs = this.#movedMs + host.limits.stallMs;
    const over = () => {
      if (!this.#isAnswered) this.#giveUp();
    };
    stream.closed.then(over, over);
  }

  /**
   * Ends the stream if the peer does not read, or if its time limit has ended. Called periodically.
   */
  check(nowMs: number): void {
    if (!this.#out.isWaiting || this.#out.taken !== this.#taken) {
      this.#taken = this.#out.taken;
      this.#movedMs = nowMs;
    }
    const isStalled = nowMs - this.#movedMs >= this.#host.limits.stallMs;
    if (isStalled || nowMs >= this.#endMs) this.stop(Code.stalled);
  }

  #giveUp(): void {
    this.#over.abort();
    this.#out.stop();
  }

  /** Serves the request. Never rejects, because the runtime would then end the whole connection. */
  async run(authorize: Authorize): Promise<void> {
    try {
      const code = await this.#run(authorize);
      if (code !== Code.none) this.stop(code);
    } catch (thrown) {
      if (!this.#over.signal.aborted) {
        this.#host.log("error", "request failed", { why: messageOf(thrown) });
      }
      this.stop(Code.failed);
    }
    const { limits, gcPressure } = this.#host;
    gcPressure.add(this.#stream, Math.min(limits.waitingBytes, this.#sentBytes));
  }

  /** Stops serving, and resets the stream with `code`. */
  stop(code: number): void {
    this.#giveUp();
    tearStream(this.#stream, code);
  }

  async #run(authorize: Authorize): Promise<number> {
    const read = await this.#read(authorize);
    if (typeof read === "number") return read;
    const { request, peer } = read;
    // An attacker can send 0-RTT data again, so only pulls, which change nothing, are served from
    // it.
    if (this.#stream.early && request.op !== "pull") return Code.protocol;
    const { clock, limits } = this.#host;
    const deadlineMs = request.op === "pull" ? request.deadlineMs : limits.requestMs;
    this.#endMs = clock.monotonicMs() + Math.min(deadlineMs, limits.requestMs);
    const isSent = await this.#answer(peer, request);
    this.#isAnswered = isSent && (await this.#out.end());
    return this.#isAnswered ? Code.none : Code.cancelled;
  }

  /**
   * Reads the preface and the request. Returns the request, or the error code with which to reset
   * the stream.
   */
  async #read(
    authorize: Authorize,
  ): Promise<{ request: PeerRequest; peer: PeerIdentity } | number> {
    const preface = new PrefaceReader();
    const reader = new MessageReader(REQUEST_BYTES_MAX);
    const batches = this.#stream[Symbol.asyncIterator]();
    let peer: PeerIdentity | null = null;
    for (;;) {
      const { value: batch, done } = await batches.next();
      if (done) return Code.protocol;
      for (const chunk of batch) {
        let at = preface.complete ? 0 : preface.take(chunk, 0);
        if (preface.fault !== null) return Code.protocol;
        if (!preface.complete) continue;
        peer ??= await authorize(preface.proof!);
        if (peer === null) return Code.refused;
        at = reader.take(chunk, at);
        if (reader.fault !== null) return Code.protocol;
        if (reader.message === null) continue;
        const decoded = decodeRequest(reader.message);
        if (!decoded.ok || at < chunk.length) return Code.protocol;
        this.#awaitEnd(batches);
        return { request: decoded.request, peer };
      }
    }
  }

  /**
   * Reads to the stream's end, because the runtime frees a stream only after that. Resets the
   * stream if more data follows the request.
   */
  #awaitEnd(batches: AsyncIterator<unknown>): void {
    batches.next().then(
      ({ done }) => {
        if (!done) this.stop(Code.protocol);
      },
      () => this.#giveUp(),
    );
  }

  /**
   * Serves the request and writes the reply. Resolves with whether the reply was written
   * completely.
   */
  async #answer(peer: PeerIdentity, request: PeerRequest): Promise<boolean> {
    const { server, limits, requests } = this.#host;
    if (!requests.take()) {
      const { retryAfterMs } = limits;
      if (request.op === "pull") return this.#refuseAll(request);
      return this.#write({ op: "busy", retryAfterMs });
    }
    try {
      if (request.op === "pull") return await this.#servePull(peer, request);
      const answer = await server.call(peer, request, this.#over.signal);
      return await this.#say(answer);
    } finally {
      requests.give();
    }
  }

  /**
   * Writes a reply. Large replies are written one after the other, so that a peer that does not
   * read occupies memory for only one of them.
   */
  async #say(answer: PeerAnswer): Promise<boolean> {
    const { signal } = this.#over;
    if (!mayBeLong(answer)) return this.#write(answer);
    await this.#longAnswers.take(null);
    try {
      return !signal.aborted && (await this.#write(answer));
    } finally {
      this.#longAnswers.give();
    }
  }

  #write(answer: PeerAnswer): Promise<boolean> {
    const bytes = encodeAnswer(answer);
    return this.#out.write(bytes, lengthOf(bytes));
  }

  async #refuseAll(pull: Pull): Promise<boolean> {
    const { retryAfterMs } = this.#host.limits;
    for (const index of pull.items.keys()) {
      const refusal = encodeRefusal(index, { kind: "busy", retryAfterMs });
      if (!(await this.#out.write(withLength(refusal)))) return false;
    }
    return true;
  }

  async #servePull(peer: PeerIdentity, pull: Pull): Promise<boolean> {
    const { signal } = this.#over;
    for await (const served of this.#host.server.serve(peer, pull, signal)) {
      if (!(await this.#send(served))) return false;
    }
    return !signal.aborted;
  }

  async #send(served: Served): Promise<boolean> {
    const { index } = served;
    if (served.kind !== "block") return this.#out.write(withLength(encodeRefusal(index, served)));
    try {
      if (this.#over.signal.aborted) return false;
      const { header, offset } = served;
      const payload = this.#host.region.span(offset, header.bytes);
      this.#sentBytes += header.bytes;
      return await this.#out.write(payload, withLength(encodeFrame(index, header)));
    } finally {
      served.release();
    }
  }
}

export interface ConnectionHost extends QuicContext {
  readonly server: PeerServer;
  /** Returns why no further connection of this worker is accepted. Null if one is. */
  whyNoMore(worker: WorkerId): string | null;
  onOver(connection: ServerConnection): void;
}

/** A connection that a peer has opened. The peer is authorized before a request is parsed. */
export class ServerConnection {
  readonly #session: Session;
  readonly #host: ConnectionHost;
  readonly #streams = new Set<ServedStream>();
  readonly #running = new Set<Promise<void>>();
  readonly #longAnswers: RequestSlots;
  readonly #authorized: Promise<PeerIdentity | null>;
  readonly #checkTimer: Disposable;
  #peer: PeerIdentity | null = null;
  #watched: Disposable | null = null;
  #isProven = false;
  #isOver = false;
  #isLeaving = false;

  constructor(session: Session, host: ConnectionHost) {
    this.#session = session;
    this.#host = host;
    const { clock, limits } = host;
    this.#longAnswers = new RequestSlots(1, limits.connectionRequestsMax);
    this.#checkTimer = clock.every(Math.max(1, limits.stallMs / 4), () => this.#check());
    const over = () => {
      this.#isOver = true;
      this.#checkTimer[Symbol.dispose]();
      this.#watched?.[Symbol.dispose]();
      host.onOver(this);
    };
    session.closed.then(over, over);
    session.onstream = (stream) => this.#take(stream);
    this.#authorized = this.#authorize();
  }

  /** Identity of the peer. Null before it is authorized, and after the connection has ended. */
  get peer(): PeerIdentity | null {
    return this.#isOver ? null : this.#peer;
  }

  /**
   * Name of the worker that has proved its identity. Null before that, and after the connection has
   * ended.
   */
  get proven(): WorkerId | null {
    return this.#isProven ? (this.peer?.worker ?? null) : null;
  }

  async #authorize(): Promise<PeerIdentity | null> {
    const { trust, log } = this.#host;
    let why: string;
    try {
      const { validationErrorReason: invalid } = await this.#session.opened;
      const certificate = this.#session.peerCertificate;
      if (certificate === undefined) why = "it presented no certificate";
      else if (invalid !== undefined) why = invalid;
      else {
        const authorized = trust.authorize(certificate.raw, null);
        if (authorized.ok) {
          this.#accept(authorized.identity, certificate.raw);
          return authorized.identity;
        }
        why = authorized.why;
      }
    } catch (thrown) {
      why = faultOf(thrown).why;
    }
    log("warn", "peer refused", { from: this.#from, why });
    this.#refuse();
    return null;
  }

  #accept(identity: PeerIdentity, der: Uint8Array): void {
    this.#peer = identity;
    if (this.#isOver) return;
    const refuse = () => this.#refuse();
    this.#watched = this.#host.trusted.watch({ identity, der, dialled: null, refuse });
  }

  get #from(): string {
    const remote = this.#session.destroyed ? undefined : this.#session.path?.remote;
    return remote === undefined ? "" : remote.address;
  }

  /**
   * Returns the peer's identity. Null if its certificate is not accepted, or if `proof` does not
   * show that it has the private key.
   */
  async #admit(proof: Uint8Array): Promise<PeerIdentity | null> {
    const peer = await this.#authorized;
    if (peer === null || this.#isProven || this.#isOver) return this.#isOver ? null : peer;
    const { trust, log } = this.#host;
    const { cluster, worker: server } = trust.credentials;
    const certificate = this.#session.peerCertificate!;
    const isProven = isProof(certificate, { cluster, client: peer.worker, server }, proof);
    const { worker } = peer;
    const why = isProven ? this.#host.whyNoMore(worker) : `it does not prove that it is ${worker}`;
    if (why === null) {
      this.#isProven = true;
      return peer;
    }
    log("warn", "peer refused", { from: this.#from, why });
    this.#refuse(isProven ? Code.full : Code.refused);
    return null;
  }

  #refuse(code: number = Code.refused): void {
    if (this.#session.destroyed) return;
    this.#session.destroy(undefined, { code, type: "application" });
  }

  #take(stream: Stream): void {
    stream.closed.catch(() => {});
    const served = new ServedStream(stream, this.#host, this.#longAnswers);
    if (this.#isLeaving) {
      served.stop(Code.leaving);
      return;
    }
    this.#streams.add(served);
    const running = served.run((proof) => this.#admit(proof));
    this.#running.add(running);
    void running.then(() => {
      this.#streams.delete(served);
      this.#running.delete(running);
    });
  }

  #check(): void {
    const nowMs = this.#host.clock.monotonicMs();
    for (const stream of this.#streams) stream.check(nowMs);
  }

  /** Closes the connection and ends its requests. */
  async close(): Promise<void> {
    this.#isLeaving = true;
    for (const stream of this.#streams) stream.stop(Code.leaving);
    await Promise.all(this.#running);
    const { clock, limits } = this.#host;
    await closeSession(this.#session, Code.leaving, clock, limits.closeMs);
  }

  /** Waits a limited time for running requests to end, then closes the connection. */
  async leave(): Promise<void> {
    this.#isLeaving = true;
    const { promise: late, resolve } = Promise.withResolvers<void>();
    using _timer = this.#host.clock.after(this.#host.limits.stallMs, resolve);
    await Promise.race([Promise.all(this.#running), late]);
    await this.close();
  }
}
