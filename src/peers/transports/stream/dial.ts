import type { TLSSocket } from "node:tls";
import { type Clock, messageOf } from "../../../core/index.ts";
import type { Cipher, LaneLink, Lanes } from "../../../native/index.ts";
import type { DialTarget, LinkFault, LinkFaultKind } from "../../transport.ts";
import type { PeerIdentity, Trust } from "../../trust.ts";
import { ANSWER_BYTES_MAX } from "../../wire/index.ts";
import { AskerLink } from "./asker-link.ts";
import { CONTROL_VERSION, type ControlMessage } from "./control/index.ts";
import type { StreamLimits } from "./limits.ts";
import { type LineEnd, type LineHandler, MessageLine } from "./message-line.ts";
import { theirFault } from "./their-fault.ts";
import { connectTls, identify, plainAddress } from "./tls.ts";

export interface DialOptions {
  readonly trust: Trust;
  readonly lanes: Lanes;
  /** Those that this side accepts, the best first. */
  readonly ciphers: readonly Cipher[];
  readonly lanesMax: number;
  readonly clock: Clock;
  readonly limits: StreamLimits;
}

export type StreamDialled =
  | { readonly ok: true; readonly link: AskerLink; readonly der: Uint8Array }
  | { readonly ok: false; readonly fault: LinkFault };

type Welcome = Extract<ControlMessage, { kind: "welcome" }>;
type Step<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; fault: LinkFault };

/** Room for what stands around an answer in its message. */
const AROUND_BYTES = 64;

/** Certificates, hello, lanes: a link is given out when all of them stand. */
export async function dialStream(
  target: DialTarget,
  options: DialOptions,
  signal: AbortSignal,
): Promise<StreamDialled> {
  const { host, port } = target;
  const { trust, clock } = options;
  const connected = await connectTls({ host, port }, trust.credentials, signal);
  if (!connected.ok) return connected;
  const { socket } = connected;
  const judged = identify(socket, trust, target.worker);
  if (!judged.ok) {
    socket.on("error", () => {});
    socket.destroy();
    return { ok: false, fault: { kind: "refused", why: judged.why } };
  }
  const startMs = clock.monotonicMs();
  const dialling = new Dialling(socket, options, signal);
  const welcome = await dialling.greet();
  if (!welcome.ok) return dialling.giveUp(welcome.fault);
  const rttMs = clock.monotonicMs() - startMs;
  const lanes = await dialling.openLanes(welcome.value);
  if (!lanes.ok) return dialling.giveUp(lanes.fault);
  const link = dialling.link(judged.identity, welcome.value, lanes.value, rttMs);
  return { ok: true, link, der: judged.der };
}

/** A connection to the right worker on its way to becoming a link. */
class Dialling implements LineHandler {
  readonly #options: DialOptions;
  readonly #address: string;
  readonly #line: MessageLine;
  readonly #signal: AbortSignal;
  /** Ends the step that is waited for. */
  #onMessage: ((message: ControlMessage) => void) | null = null;
  #fault: LinkFault | null = null;
  #onFault: ((fault: LinkFault) => void) | null = null;
  readonly #onAbort = () => this.#fail("aborted", "the dial was given up");

  constructor(socket: TLSSocket, options: DialOptions, signal: AbortSignal) {
    this.#options = options;
    this.#signal = signal;
    this.#address = plainAddress(socket.remoteAddress ?? "");
    const { clock, limits } = options;
    this.#line = new MessageLine(socket, {
      clock,
      messageBytesMax: ANSWER_BYTES_MAX + AROUND_BYTES,
      unreadBytesMax: limits.unreadBytesMax,
    });
    this.#line.handTo(this);
    signal.addEventListener("abort", this.#onAbort, { once: true });
    if (signal.aborted) this.#onAbort();
  }

  receive(message: ControlMessage): void {
    if (message.kind === "bye") {
      const { kind, why } = theirFault(message.fault, message.why);
      this.#fail(kind, why);
    } else if (this.#onMessage !== null) this.#onMessage(message);
    else this.#fail("protocol", "it spoke before it was asked");
  }

  lineEnded(end: LineEnd): void {
    // A certificate that is refused shows like this: the handshake was over for this side.
    this.#fail(end.kind === "broken" ? "refused" : end.kind, end.why);
  }

  greet(): Promise<Step<Welcome>> {
    const { ciphers, lanesMax: lanes } = this.#options;
    return this.#step((done) => {
      this.#onMessage = (message) => {
        this.#onMessage = null;
        if (message.kind !== "welcome") return this.#fail("protocol", "it did not say welcome");
        const { session, version } = message;
        const isFair = ciphers.includes(session.cipher) && session.lanes <= lanes;
        if (!isFair || version > CONTROL_VERSION) {
          return this.#fail("protocol", "it chose what was not offered");
        }
        done(message);
      };
      this.#line.send({ kind: "hello", version: CONTROL_VERSION, lanes, ciphers });
    });
  }

  openLanes(welcome: Welcome): Promise<Step<LaneLink>> {
    const { lanes, limits } = this.#options;
    return this.#step((done) => {
      lanes.dial(welcome.session, this.#address, welcome.port, limits.setUpMs).then(
        (link) => {
          if (this.#fault === null) done(link);
          else void link[Symbol.asyncDispose]();
        },
        (thrown) => this.#fail("unreachable", `its lanes: ${messageOf(thrown)}`),
      );
    });
  }

  link(identity: PeerIdentity, welcome: Welcome, lanes: LaneLink, rttMs: number): AskerLink {
    const { clock, limits } = this.#options;
    const { requests } = welcome;
    this.#signal.removeEventListener("abort", this.#onAbort);
    const own = { identity, line: this.#line, lanes, clock, limits, requests, rttMs };
    const link = new AskerLink(own);
    this.#line.handTo(link);
    return link;
  }

  giveUp(fault: LinkFault): StreamDialled {
    this.#signal.removeEventListener("abort", this.#onAbort);
    this.#line.destroy();
    return { ok: false, fault };
  }

  #step<T>(begin: (done: (value: T) => void) => void): Promise<Step<T>> {
    return new Promise((resolve) => {
      if (this.#fault !== null) return resolve({ ok: false, fault: this.#fault });
      this.#onFault = (fault) => resolve({ ok: false, fault });
      begin((value) => resolve({ ok: true, value }));
    });
  }

  #fail(kind: LinkFaultKind, why: string): void {
    if (this.#fault !== null) return;
    this.#fault = { kind, why };
    this.#onFault?.(this.#fault);
  }
}
