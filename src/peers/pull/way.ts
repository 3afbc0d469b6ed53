import type { Clock, WorkerId } from "../../core/index.ts";
import type { PeerHello } from "../messages.ts";
import type { Dialled, Endpoint, LinkFault, PeerLink, Transport } from "../transport.ts";
import type { Breaker } from "./breaker.ts";
import type { IdleLinks } from "./idle-links.ts";
import { Latencies } from "./latencies.ts";
import { Meter } from "./meter.ts";

/** A link on which nothing was asked for so long is closed. */
const IDLE_MS = 60_000;

export interface WayEvents {
  /** The other side said who it is. */
  greeted(hello: PeerHello): void;
  /** Its answer to our hello makes no sense. */
  distrusted(fault: LinkFault): void;
}

export interface WayParts {
  readonly worker: WorkerId;
  readonly transport: Transport;
  readonly breaker: Breaker;
  readonly self: PeerHello;
  readonly clock: Clock;
  readonly dialMs: () => number;
  readonly idle: IdleLinks;
  readonly events: WayEvents;
}

/**
 * One transport to one peer: at most one link, dialled once for all who want it, closed when nobody
 * used it for a while, or others are used more.
 */
export class Way {
  readonly transport: Transport;
  readonly breaker: Breaker;
  readonly meter: Meter;
  /** From asking to the first block, and between two blocks of one request; milliseconds. */
  readonly firsts = new Latencies();
  readonly gaps = new Latencies();
  blocks = 0;
  bytes = 0;
  /** Before the link of now. */
  #bytesBefore = 0;
  /** Of the certificate that was shown last, in milliseconds since 1970. */
  certificateEndsMs: number | null = null;
  readonly #parts: WayParts;
  #link: PeerLink | null = null;
  #dialling: Promise<Dialled> | null = null;
  #giveUp: AbortController | null = null;
  /** Requests under way, by link. */
  readonly #users = new Map<PeerLink, number>();
  /** Not used for new requests; closed after those under way. */
  readonly #retired = new Set<PeerLink>();
  #idle: Disposable | null = null;
  #lastRttMs: number | null = null;
  #closed = false;

  constructor(parts: WayParts) {
    this.#parts = parts;
    this.transport = parts.transport;
    this.breaker = parts.breaker;
    this.meter = new Meter(parts.clock, () => this.rttMs);
  }

  get link(): PeerLink | null {
    return this.#link?.fault === null ? this.#link : null;
  }

  get dialling(): boolean {
    return this.#dialling !== null;
  }

  get rttMs(): number | null {
    return this.#link?.rttMs ?? this.#lastRttMs;
  }

  /** The link, dialled where there is none. Bounded by the time a dial may take. */
  open(endpoint: Endpoint): Promise<Dialled> {
    if (this.#closed) return Promise.resolve(failed({ kind: "closed", why: "this host stops" }));
    const link = this.link;
    if (link !== null) return Promise.resolve({ ok: true, link });
    this.#dialling ??= this.#dial(endpoint).finally(() => {
      this.#dialling = null;
    });
    return this.#dialling;
  }

  /** A request begins on a link, which stays open at least until the answer is disposed. */
  use(link: PeerLink): Disposable {
    this.#users.set(link, (this.#users.get(link) ?? 0) + 1);
    if (link === this.#link) this.#stopIdling();
    return {
      [Symbol.dispose]: () => {
        const left = this.#users.get(link)! - 1;
        if (left > 0) {
          this.#users.set(link, left);
          return;
        }
        this.#users.delete(link);
        if (this.#retired.delete(link)) void link[Symbol.asyncDispose]();
        else if (link === this.#link && !this.#closed) this.#closeWhenIdle();
      },
    };
  }

  /**
   * Nothing comes over this link, though it may not know yet that it has ended: what is asked from
   * now on is asked over another one.
   */
  retire(link: PeerLink): void {
    if (this.#link === link) {
      this.#stopIdling();
      this.#link = null;
      this.#lastRttMs = link.rttMs ?? this.#lastRttMs;
    }
    if (this.#users.has(link)) this.#retired.add(link);
    else void link[Symbol.asyncDispose]();
  }

  /** The link is given up, as one that cannot be trusted or leads to another process. */
  async drop(): Promise<void> {
    this.#stopIdling();
    const link = this.#link;
    this.#link = null;
    this.#lastRttMs = link?.rttMs ?? this.#lastRttMs;
    await link?.[Symbol.asyncDispose]();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#stopIdling();
    this.#giveUp?.abort();
    await this.#dialling;
    await this.drop();
    await Promise.all([...this.#retired].map((link) => link[Symbol.asyncDispose]()));
  }

  async #dial(endpoint: Endpoint): Promise<Dialled> {
    const { worker, transport, clock, dialMs } = this.#parts;
    const giveUp = new AbortController();
    this.#giveUp = giveUp;
    const late = Promise.withResolvers<Dialled>();
    const ms = dialMs();
    using _timer = clock.after(ms, () => {
      const why = `no answer to the dial within ${Math.round(ms)} ms`;
      late.resolve(failed({ kind: "unreachable", why }));
      giveUp.abort();
    });
    giveUp.signal.addEventListener("abort", () => {
      late.resolve(failed({ kind: "closed", why: "the dial was given up" }));
    });
    const dial = transport.dial({ ...endpoint, worker }, giveUp.signal);
    const dialled = await Promise.race([dial, late.promise]);
    if (!dialled.ok) {
      void dial.then(async (came) => {
        if (came.ok) await came.link[Symbol.asyncDispose]();
      });
      return dialled;
    }
    this.#adopt(dialled.link);
    return dialled;
  }

  #adopt(link: PeerLink): void {
    this.#link = link;
    this.#bytesBefore = this.bytes;
    this.certificateEndsMs = link.identity.notAfterMs;
    void link.ended.then(() => {
      this.#lastRttMs = link.rttMs ?? this.#lastRttMs;
      if (this.#link !== link) return;
      this.#link = null;
      this.#stopIdling();
    });
    if (!this.#users.has(link)) this.#closeWhenIdle();
    void this.#greet(link);
  }

  /** Says who we are beside the first request, which does not wait for it. */
  async #greet(link: PeerLink): Promise<void> {
    const { self, dialMs, events, worker } = this.#parts;
    const called = await link.call({ op: "hello", hello: self }, { deadlineMs: dialMs() });
    if (!called.ok) return;
    const { answer } = called;
    if (answer.op === "hello" && answer.hello.worker === worker) {
      events.greeted(answer.hello);
      return;
    }
    if (answer.op === "busy") return;
    const why = answer.op === "refused" ? answer.why : "its hello is of somebody else";
    events.distrusted({ kind: answer.op === "refused" ? "refused" : "protocol", why });
    if (this.#link === link) await this.drop();
  }

  #stopIdling(): void {
    this.#idle?.[Symbol.dispose]();
    this.#idle = null;
    this.#parts.idle.leave(this);
  }

  #closeWhenIdle(): void {
    this.#stopIdling();
    this.#idle = this.#parts.clock.after(IDLE_MS, () => void this.drop());
    this.#parts.idle.enter(this, this.bytes > this.#bytesBefore);
  }
}

function failed(fault: LinkFault): Dialled {
  return { ok: false, fault };
}
