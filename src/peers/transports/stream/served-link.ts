import { type Clock, messageOf } from "../../../core/index.ts";
import type { Cipher, LaneLink, LaneSession, Lanes } from "../../../native/index.ts";
import type { PeerRequest } from "../../messages.ts";
import type { LinkFaultKind, PeerServer, TransportLog } from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import { decodeRequest, encodeAnswer } from "../../wire/index.ts";
import { CONTROL_VERSION, type ControlMessage } from "./control/index.ts";
import { LifeSigns } from "./life-signs.ts";
import type { StreamLimits } from "./limits.ts";
import type { LineEnd, LineHandler, MessageLine } from "./message-line.ts";
import { ServedPull } from "./served-pull.ts";

/** What all links of others have in common. */
export interface LinkHost {
  readonly server: PeerServer;
  readonly lanes: Lanes;
  readonly lanesPort: number;
  /** Those that this side allows. */
  readonly ciphers: readonly Cipher[];
  readonly lanesMax: number;
  readonly clock: Clock;
  readonly limits: StreamLimits;
  readonly log: TransportLog;
  /** False: as many requests as may be are under way, over all links. */
  takeRequest(): boolean;
  giveRequest(): void;
  /** The link is over and lends nothing any more. */
  onOver(link: ServedLink): void;
}

const NUMBERS_END = 2 ** 32;

type Hello = Extract<ControlMessage, { kind: "hello" }>;
type Call = Exclude<PeerRequest, { op: "pull" }>;

/** Something under way that can be given up. */
interface Running {
  cancel(): void;
  readonly pull: ServedPull | null;
}

/**
 * The end of a link of another worker, whose certificate was verified before.
 *
 * States: waiting for the hello → lanes on their way → open → over.
 */
export class ServedLink implements LineHandler {
  readonly peer: PeerIdentity;
  readonly #line: MessageLine;
  readonly #host: LinkHost;
  readonly #running = new Map<number, Running>();
  readonly #signs: LifeSigns;
  readonly #setUp: Disposable;
  #session: Promise<LaneLink> | null = null;
  #lanes: LaneLink | null = null;
  #isOver = false;
  /** All that was under way has ended. */
  #quiet: (() => void)[] = [];

  constructor(peer: PeerIdentity, line: MessageLine, host: LinkHost) {
    this.peer = peer;
    this.#line = line;
    this.#host = host;
    const { clock, limits } = host;
    this.#signs = new LifeSigns({
      ...{ line, clock, limits, asks: false },
      onRtt: () => {},
      onDead: (why) => this.end("stalled", why),
    });
    this.#setUp = clock.after(limits.setUpMs, () => {
      if (this.#lanes === null) this.end("stalled", "its lanes did not come");
    });
  }

  /** Takes a message of the asker. */
  receive(message: ControlMessage): void {
    if (this.#isOver) return;
    const wrong = this.#take(message);
    if (wrong !== null) this.end("protocol", wrong);
  }

  lineEnded(end: LineEnd): void {
    this.end(end.kind, end.why);
  }

  /** In words what is wrong with it; null: nothing. */
  #take(message: ControlMessage): string | null {
    if (message.kind === "hello") return this.#greet(message);
    if (this.#session === null) return "it asked before it said hello";
    switch (message.kind) {
      case "call":
        return this.#startCall(message.id, message.body);
      case "pull":
        return this.#startPull(message);
      case "go": {
        const running = this.#running.get(message.id);
        if (running === undefined) return null;
        return running.pull?.go(message.index, message.transfer) ? null : "it said go for nothing";
      }
      case "cancel":
        this.#running.get(message.id)?.cancel();
        return null;
      case "ping":
        this.#line.send({ kind: "pong", nonce: message.nonce });
        return null;
      case "pong":
        return null;
      case "bye":
        this.end("broken", "it said that it ends");
        return null;
      default:
        return "it answered on a link of its own";
    }
  }

  #greet(hello: Hello): string | null {
    if (this.#session !== null) return "it said hello twice";
    const { ciphers, lanes, lanesPort, lanesMax, limits } = this.#host;
    const cipher = hello.ciphers.find((theirs) => ciphers.includes(theirs));
    if (cipher === undefined) {
      this.end("refused", "no cipher is allowed on both sides");
      return null;
    }
    const session: LaneSession = {
      id: crypto.getRandomValues(new Uint8Array(16)),
      secret: crypto.getRandomValues(new Uint8Array(32)),
      cipher,
      lanes: Math.min(hello.lanes, lanesMax),
    };
    this.#session = lanes.expect(session, limits.setUpMs);
    this.#session.then(
      (link) => this.#openLanes(link),
      (thrown) => this.end("broken", `its lanes did not come: ${messageOf(thrown)}`),
    );
    const version = Math.min(hello.version, CONTROL_VERSION);
    // The other side's count of what is under way runs a little behind ours.
    const requests = Math.max(1, Math.floor(limits.linkRequestsMax / 2));
    this.#line.send({ kind: "welcome", version, port: lanesPort, requests, session });
    return null;
  }

  #openLanes(link: LaneLink): void {
    this.#setUp[Symbol.dispose]();
    this.#lanes = link;
    if (this.#isOver) void link[Symbol.asyncDispose]();
    else link.ended.then((fault) => this.end("broken", `its lanes ended: ${fault}`));
  }

  /** Whether one more request may be worked on; null: its number is used already. */
  #admit(id: number): boolean | null {
    if (this.#running.has(id)) return null;
    if (this.#running.size >= this.#host.limits.linkRequestsMax) return false;
    return this.#host.takeRequest();
  }

  #finish(id: number): void {
    this.#running.delete(id);
    this.#host.giveRequest();
    if (this.#running.size > 0) return;
    for (const wake of this.#quiet.splice(0)) wake();
  }

  #startCall(id: number, body: Uint8Array): string | null {
    const decoded = decodeRequest(body);
    if (!decoded.ok) return decoded.why;
    const { request } = decoded;
    if (request.op === "pull") return "it pulled as a call";
    const admitted = this.#admit(id);
    if (admitted === null) return "it used the number of a request that is under way";
    if (!admitted) {
      const { retryAfterMs } = this.#host.limits;
      const body = encodeAnswer({ op: "busy", retryAfterMs });
      this.#line.send({ kind: "answer", id, body });
      return null;
    }
    const abort = new AbortController();
    this.#running.set(id, { cancel: () => abort.abort(), pull: null });
    this.#call(id, request, abort).finally(() => this.#finish(id));
    return null;
  }

  /** Never throws. */
  async #call(id: number, request: Call, abort: AbortController): Promise<void> {
    const { server, clock, limits, log } = this.#host;
    const { signal } = abort;
    using _ = clock.after(limits.requestMs, () => abort.abort());
    try {
      const answer = await server.call(this.peer, request, signal);
      // Answers may be long: one is written down when those before it are taken.
      while (!signal.aborted && this.#line.isFull) await this.#line.room();
      if (!signal.aborted) this.#line.send({ kind: "answer", id, body: encodeAnswer(answer) });
    } catch (thrown) {
      const fields = { peer: this.peer.worker, op: request.op, why: messageOf(thrown) };
      log("error", "a peer's request could not be answered", fields);
      if (signal.aborted) return;
      const body = encodeAnswer({ op: "refused", why: "it could not be answered" });
      this.#line.send({ kind: "answer", id, body });
    }
  }

  #startPull(message: Extract<ControlMessage, { kind: "pull" }>): string | null {
    const { id, transfer, announced, body } = message;
    const decoded = decodeRequest(body);
    if (!decoded.ok) return decoded.why;
    const { request } = decoded;
    if (request.op !== "pull") return "it called as a pull";
    const isAnnounced = announced <= request.items.length && transfer + announced <= NUMBERS_END;
    if (!isAnnounced) return "it announced what cannot be";
    const admitted = this.#admit(id);
    if (admitted === null) return "it used the number of a request that is under way";
    const { server, clock, limits, log } = this.#host;
    const lanes = this.#session;
    if (!admitted || lanes === null) {
      const { retryAfterMs } = limits;
      this.#line.send({ kind: "busy", id, retryAfterMs });
      return null;
    }
    const pull = new ServedPull({
      ...{ id, transfer, announced, request, peer: this.peer, line: this.#line, lanes },
      ...{ server, clock, limits, log },
      onWrong: (why) => this.end("protocol", why),
    });
    this.#running.set(id, { cancel: () => pull.cancel(), pull });
    pull.run().finally(() => this.#finish(id));
    return null;
  }

  /** Gives everything up. `why` is said to the other side where that makes sense. */
  end(kind: LinkFaultKind, why: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { log } = this.#host;
    const level = kind === "protocol" || kind === "refused" ? "warn" : "debug";
    log(level, "a peer's link ended", { peer: this.peer.worker, kind, why });
    this.#signs[Symbol.dispose]();
    this.#setUp[Symbol.dispose]();
    for (const { cancel } of [...this.#running.values()]) cancel();
    if (kind === "broken" || kind === "stalled") this.#line.destroy();
    else this.#line.close({ kind: "bye", fault: kind, why });
    this.#tearDown()
      .catch((thrown) => log("error", "lanes could not be closed", { why: messageOf(thrown) }))
      .finally(() => this.#host.onOver(this));
  }

  async #tearDown(): Promise<void> {
    await this.#lanes?.[Symbol.asyncDispose]();
    await this.quiet();
  }

  /** Resolves when nothing of it is under way. */
  quiet(): Promise<void> {
    if (this.#running.size === 0) return Promise.resolve();
    return new Promise((resolve) => this.#quiet.push(resolve));
  }
}
