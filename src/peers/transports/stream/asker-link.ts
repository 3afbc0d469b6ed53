import type { Clock } from "../../../core/index.ts";
import type { LaneLink } from "../../../native/index.ts";
import type { PeerRequest } from "../../messages.ts";
import type { Called, LinkFault, LinkFaultKind, OutgoingPull, PeerLink } from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import { decodeAnswer, decodePart, encodeRequest, whyNoAnswer } from "../../wire/index.ts";
import { Patience } from "../patience.ts";
import { Slots } from "../slots.ts";
import { AskedPull, type PullLine } from "./asked-pull.ts";
import type { ControlMessage } from "./control/index.ts";
import { LifeSigns } from "./life-signs.ts";
import type { StreamLimits } from "./limits.ts";
import type { LineEnd, LineHandler, MessageLine } from "./message-line.ts";
import { theirFault } from "./their-fault.ts";

type CallRequest = Exclude<PeerRequest, { op: "pull" }>;

/** A call that waits for its answer. */
interface Call {
  readonly request: CallRequest;
  readonly settle: (called: Called) => void;
}

/** Requests and transfers have numbers of 32 bits; a link that has used up most of them ends. */
const NUMBERS_MAX = 2 ** 32 - 2 ** 24;

export interface AskerLinkOptions {
  readonly identity: PeerIdentity;
  readonly line: MessageLine;
  readonly lanes: LaneLink;
  readonly clock: Clock;
  readonly limits: StreamLimits;
  /** Requests that the other side works on at a time. */
  readonly requests: number;
  /** The first round trip, in milliseconds. */
  readonly rttMs: number;
}

/** The asker's end of a link whose lanes stand. */
export class AskerLink implements PeerLink, PullLine, LineHandler {
  readonly identity: PeerIdentity;
  readonly transport = "stream";
  readonly resumed = false;
  readonly lanes: LaneLink;
  readonly clock: Clock;
  readonly ended: Promise<LinkFault>;
  rttMs: number;
  readonly #line: MessageLine;
  readonly #limits: StreamLimits;
  readonly #calls = new Map<number, Call>();
  readonly #pulls = new Map<number, AskedPull>();
  readonly #slots: Slots;
  readonly #signs: LifeSigns;
  #progress: Disposable | null = null;
  #announced = 0;
  #nextId = 0;
  #nextTransfer = 0;
  #fault: LinkFault | null = null;
  #onEnd!: (fault: LinkFault) => void;
  /** The lanes are closed, so that no pull of this link writes anything. */
  #torn: Promise<void> = Promise.resolve();

  constructor(options: AskerLinkOptions) {
    const { identity, line, lanes, clock, limits } = options;
    this.identity = identity;
    this.lanes = lanes;
    this.clock = clock;
    this.rttMs = options.rttMs;
    this.#line = line;
    this.#limits = limits;
    this.#slots = new Slots(options.requests, limits.waitingMax);
    this.ended = new Promise((resolve) => {
      this.#onEnd = resolve;
    });
    this.#signs = new LifeSigns({
      ...{ line, clock, limits, asks: true },
      onRtt: (ms) => {
        this.rttMs = Math.min(this.rttMs, ms);
      },
      onDead: (why) => this.#end("stalled", why),
    });
    lanes.ended.then((fault) => this.#end("broken", `the lanes ended: ${fault}`));
  }

  get fault(): LinkFault | null {
    return this.#fault;
  }

  takeTransfer(): number {
    return this.#nextTransfer++;
  }

  countAnnounced(by: 1 | -1): void {
    this.#announced += by;
  }

  send(message: ControlMessage): void {
    this.#line.send(message);
  }

  async call(
    request: CallRequest,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called> {
    using patience = new Patience(this.clock, options.deadlineMs, options.signal);
    const refused = await this.#takeSlot(patience);
    if (refused !== null) return { ok: false, fault: refused };
    const id = this.#nextId++;
    try {
      return await this.#ask(id, request, patience);
    } finally {
      this.#calls.delete(id);
      this.#slots.give();
    }
  }

  #ask(id: number, request: CallRequest, patience: Patience): Promise<Called> {
    const { promise, resolve } = Promise.withResolvers<Called>();
    const onAbort = () => {
      this.send({ kind: "cancel", id });
      resolve({ ok: false, fault: patience.fault });
    };
    this.#calls.set(id, { request, settle: resolve });
    patience.signal.addEventListener("abort", onAbort, { once: true });
    this.send({ kind: "call", id, body: encodeRequest(request) });
    return promise;
  }

  async pull(pull: OutgoingPull): Promise<LinkFault | null> {
    if (pull.items.length === 0) return null;
    using patience = new Patience(this.clock, pull.deadlineMs, pull.signal);
    const refused = await this.#takeSlot(patience);
    if (refused !== null) return refused;
    try {
      const announced = Math.max(0, this.#limits.announcedMax - this.#announced);
      const asked = new AskedPull(this.#nextId++, this, pull, { announced, patience });
      this.#pulls.set(asked.id, asked);
      this.#watchProgress();
      const fault = await asked.over;
      this.#pulls.delete(asked.id);
      return fault;
    } finally {
      if (this.#pulls.size === 0) this.#stopWatching();
      this.#slots.give();
    }
  }

  /** Null: it has one. */
  async #takeSlot(patience: Patience): Promise<LinkFault | null> {
    const used = Math.max(this.#nextId, this.#nextTransfer);
    if (used > NUMBERS_MAX) this.#end("closed", "its numbers are used up");
    if (this.#fault !== null) return this.#fault;
    if (patience.signal.aborted) return patience.fault;
    if (this.#slots.isCrowded) return { kind: "stalled", why: "too many requests wait" };
    const got = await this.#slots.take(patience.signal);
    if (!got) return this.#fault ?? patience.fault;
    if (this.#fault === null && !patience.signal.aborted) return null;
    this.#slots.give();
    return this.#fault ?? patience.fault;
  }

  #watchProgress(): void {
    const { progressMs, stallMs } = this.#limits;
    this.#progress ??= this.clock.every(progressMs, () => {
      for (const pull of this.#pulls.values()) pull.count(stallMs);
    });
  }

  #stopWatching(): void {
    this.#progress?.[Symbol.dispose]();
    this.#progress = null;
  }

  /** Takes a message of the other side. */
  receive(message: ControlMessage): void {
    const wrong = this.#take(message);
    if (wrong !== null) this.#end("protocol", wrong);
  }

  /** In words what is wrong with it; null: nothing. */
  #take(message: ControlMessage): string | null {
    switch (message.kind) {
      case "answer":
        return this.#takeAnswer(message.id, message.body);
      case "part":
        return this.#takePart(message.id, message.sent, message.body);
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
        this.send({ kind: "pong", nonce: message.nonce });
        return null;
      case "pong":
        this.#signs.answered(message.nonce);
        return null;
      case "bye":
        this.#end(message.fault === "refused" ? "refused" : "broken", `it said: ${message.why}`);
        return null;
      default:
        return "it asked on a link of ours";
    }
  }

  /** What comes for a request that is over is late; one that never was is a fault. */
  #mayName(id: number): string | null {
    return id < this.#nextId ? null : "it answered what was not asked";
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

  #takePart(id: number, sent: boolean, body: Uint8Array): string | null {
    const pull = this.#pulls.get(id);
    if (pull === undefined) return this.#mayName(id);
    const decoded = decodePart(body);
    return decoded.ok ? pull.takePart(decoded.part, sent) : decoded.why;
  }

  lineEnded(end: LineEnd): void {
    this.#end(end.kind, end.why);
  }

  /** Its certificate is not accepted any more. */
  refuse(why: string): void {
    this.#end("refused", why);
  }

  #end(kind: LinkFaultKind, why: string): void {
    if (this.#fault !== null) return;
    const fault: LinkFault = { kind, why };
    this.#fault = fault;
    this.#signs[Symbol.dispose]();
    this.#stopWatching();
    this.#slots.close();
    for (const { settle } of [...this.#calls.values()]) settle({ ok: false, fault });
    for (const pull of this.#pulls.values()) pull.fail(fault);
    if (kind === "protocol" || kind === "closed" || kind === "refused")
      this.#line.close({ kind: "bye", fault: kind, why });
    else this.#line.destroy();
    this.#torn = Promise.resolve(this.lanes[Symbol.asyncDispose]());
    this.#onEnd(fault);
  }

  /** Resolves when no pull of it writes any more. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#end("closed", "this side closed it");
    await this.#torn;
    await Promise.all([...this.#pulls.values()].map((pull) => pull.over));
  }
}
