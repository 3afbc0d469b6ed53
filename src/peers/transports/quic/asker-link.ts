import type { Clock } from "../../../core/index.ts";
import type { Region } from "../../../native/index.ts";
import type { PeerRequest } from "../../messages.ts";
import type { Called, LinkFault, OutgoingPull, PeerLink } from "../../transport.ts";
import type { Judgement, PeerIdentity } from "../../trust.ts";
import { encodeRequest, withLength } from "../../wire/index.ts";
import type { HeldLink } from "../held-links.ts";
import { AnswerSink } from "./answer-sink.ts";
import { closeSession } from "./close-session.ts";
import { Code, faultOf } from "./codes.ts";
import { Exchange, type Sink } from "./exchange.ts";
import { Limit } from "./limit.ts";
import type { QuicLimits } from "./limits.ts";
import type { Litter } from "./litter.ts";
import type { Session } from "./module.ts";
import { EARLY_PADDING_BYTES, encodePreface } from "./preface.ts";
import { PullSink } from "./pull-sink.ts";
import type { Ticket } from "./tickets.ts";

type CallRequest = Exclude<PeerRequest, { op: "pull" }>;

export interface AskerParts {
  readonly session: Session;
  /** The ticket that the connection began with; null: none. */
  readonly ticket: Ticket | null;
  /** Shows that we are who our certificate says. */
  readonly proof: Uint8Array;
  readonly region: Region;
  readonly clock: Clock;
  readonly limits: QuicLimits;
  readonly litter: Litter;
  judge(certificate: Uint8Array): Judgement;
  /** Holds it against what is believed from now on. */
  hold(link: Pick<HeldLink, "identity" | "der" | "refuse">): Disposable;
}

/**
 * Our end of a connection that we made. One that began with a ticket may be used at once: its first
 * pulls leave with the first packet, everything else waits for the handshake.
 */
export class AskerLink implements PeerLink {
  readonly transport = "quic";
  readonly ended: Promise<LinkFault>;
  /** Null once the peer's certificate was found good in this handshake; else why it ended. */
  readonly ready: Promise<LinkFault | null>;
  readonly #parts: AskerParts;
  readonly #exchanges = new Set<Exchange>();
  readonly #end = Promise.withResolvers<LinkFault>();
  #identity: PeerIdentity | null;
  #certificate: Uint8Array | null = null;
  #newTicket: Uint8Array | null = null;
  #token: Uint8Array | null = null;
  #fault: LinkFault | null = null;
  #isReady = false;
  #isEarlyRefused = false;
  #isHeard = false;
  #heardMs: number;
  #rttMs: number | null = null;
  readonly #watch: Disposable;
  #requests = 0;
  /** When the last request was over. */
  #restMs: number;
  #closing: Promise<void> | null = null;

  constructor(parts: AskerParts) {
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
    this.#watch = parts.clock.every(Math.max(1, Math.min(stallMs, idleMs) / 4), () => this.#look());
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

  get fault(): LinkFault | null {
    return this.#fault;
  }

  /** What the next connection may begin with, and for how long. */
  get nextTicket(): { readonly ticket: Ticket; readonly ms: number } | null {
    const { limits, clock } = this.#parts;
    if (!this.#isReady || this.#newTicket === null) return null;
    const ms = limits.ticketMs - (clock.monotonicMs() - this.#heardMs);
    const certificate = this.#certificate!;
    const ticket = { ticket: this.#newTicket, token: this.#token, certificate };
    return { ticket: { ...ticket, identity: this.identity }, ms };
  }

  async #open(): Promise<LinkFault | null> {
    const { session, judge } = this.#parts;
    let refusal: string;
    try {
      const { validationErrorReason: invalid, earlyDataAccepted } = await session.opened;
      this.#isEarlyRefused = !earlyDataAccepted;
      const certificate = session.peerCertificate;
      const judged = certificate === undefined ? null : judge(certificate.raw);
      if (judged?.ok && invalid === undefined) {
        this.#identity = judged.identity;
        this.#certificate = certificate!.raw;
        this.#isReady = true;
        this.#hold(judged.identity, certificate!.raw);
        return this.#fault;
      }
      refusal = invalid ?? (judged?.ok === false ? judged.why : "it showed no certificate");
    } catch (thrown) {
      const fault = faultOf(thrown);
      const isGone = fault.kind === "broken";
      this.#over(isGone ? { kind: "unreachable", why: fault.why } : fault);
      return this.#fault;
    }
    this.#over({ kind: "refused", why: refusal }, Code.refused);
    return this.#fault;
  }

  #hold(identity: PeerIdentity, der: Uint8Array): void {
    const refuse = (why: string) => this.#over({ kind: "refused", why }, Code.refused);
    const held = this.#parts.hold({ identity, der, refuse });
    void this.ended.then(() => held[Symbol.dispose]());
  }

  async call(
    request: CallRequest,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called> {
    using limit = new Limit(this.#parts.clock, options.deadlineMs, options.signal);
    const sink = new AnswerSink(request);
    const fault = (await this.#untilReady(limit)) ?? (await this.#ask(request, sink, limit));
    if (fault !== null) return { ok: false, fault };
    return { ok: true, answer: sink.answer! };
  }

  async pull(pull: OutgoingPull): Promise<LinkFault | null> {
    const { clock, region } = this.#parts;
    if (pull.items.length === 0) return this.#fault;
    using limit = new Limit(clock, pull.deadlineMs, pull.signal);
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
      // The ticket was not taken: nothing of the first flight was read there.
      if (!this.#isEarlyRefused || !sink.isFresh) return fault;
    }
    const late = await this.#untilReady(limit);
    return late ?? (await this.#ask(request(), new PullSink(pull, region), limit));
  }

  /** Null: the handshake is over and the link is good. */
  async #untilReady(limit: Limit): Promise<LinkFault | null> {
    if (limit.fault !== null || this.#isReady) return limit.fault ?? this.#fault;
    const { promise, resolve } = Promise.withResolvers<LinkFault | null>();
    limit.onOver = () => resolve(limit.fault);
    void this.ready.then(() => resolve(this.#fault));
    const fault = await promise;
    limit.onOver = null;
    return fault;
  }

  async #ask(
    request: PeerRequest,
    sink: Sink,
    limit: Limit,
    paddingBytes = 0,
  ): Promise<LinkFault | null> {
    const { proof } = this.#parts;
    const exchange = new Exchange({
      ...{ ...this.#parts, sink, limit },
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
    // A connection that ends takes its streams with it, and only it knows why.
    if (fault?.kind === "broken" && exchange.resetCode === null) return this.#fault ?? fault;
    return fault;
  }

  /** Gives up requests that stand still, and the link when nothing is asked for a while. */
  #look(): void {
    const { clock, limits } = this.#parts;
    const nowMs = clock.monotonicMs();
    for (const exchange of this.#exchanges) exchange.look(nowMs);
    if (this.#requests > 0 || nowMs - this.#restMs < limits.idleMs) return;
    void this.#close({ kind: "closed", why: "nothing was asked for a while" });
  }

  #over(fault: LinkFault, code: number = Code.none): void {
    if (this.#fault !== null) return;
    void this.rttMs;
    this.#fault = fault;
    this.#watch[Symbol.dispose]();
    for (const exchange of this.#exchanges) exchange.end(fault);
    const { session } = this.#parts;
    if (fault.kind !== "closed" && !session.destroyed) {
      session.destroy(undefined, { code, type: "application" });
    }
    this.#end.resolve(fault);
  }

  #close(fault: LinkFault): Promise<void> {
    this.#closing ??= (async () => {
      const { session, clock, limits } = this.#parts;
      this.#over(fault);
      await closeSession(session, Code.none, clock, limits.closeMs);
    })();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#close({ kind: "closed", why: "this side closed the link" });
  }
}
