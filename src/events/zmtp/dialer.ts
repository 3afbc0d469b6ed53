import { messageOf, type Random, randomBelow } from "../../core/index.ts";
import { type Attachment, handlers, peerOn } from "./attach.ts";
import type { ZmtpEndpoint } from "./endpoint.ts";
import type { ZmtpLimits } from "./limits.ts";
import type { Peer, PeerEvents } from "./peer.ts";

const JITTER = 0.25;

/** Wait number `tries`, from 1. */
function redialMs(tries: number, limits: ZmtpLimits, random: Random): number {
  const ms = Math.min(limits.redialFirstMs * 2 ** (tries - 1), limits.redialMaxMs);
  return ms * (1 - JITTER) + randomBelow(random, Math.ceil(2 * JITTER * ms));
}

/** What is told of a connection that is being made again and again. */
export interface DialerState {
  peer: Peer | null;
  why: string | null;
  isHung: boolean;
  connections: number;
  refused: number;
  isClosed: boolean;
}

/** Keeps one connection to an endpoint until it is closed. */
export class Dialer {
  readonly state: DialerState = {
    peer: null,
    why: "not connected so far",
    isHung: false,
    connections: 0,
    refused: 0,
    isClosed: false,
  };
  readonly #endpoint: ZmtpEndpoint;
  readonly #attachment: Attachment;
  #tries = 0;
  /** Of the latest dial: what an earlier one still brings is not wanted. */
  #dial = 0;
  #current: Peer | null = null;
  #isPaused = false;
  #timer: Disposable | null = null;

  constructor(endpoint: ZmtpEndpoint, attachment: Attachment) {
    this.#endpoint = endpoint;
    this.#attachment = { ...attachment, events: this.#watched(attachment.events) };
    this.#start();
  }

  pause(): void {
    this.#isPaused = true;
    this.#current?.pause();
  }

  resume(): void {
    this.#isPaused = false;
    this.#current?.resume();
  }

  close(): void {
    if (this.state.isClosed) return;
    this.state.isClosed = true;
    this.#timer?.[Symbol.dispose]();
    this.#current?.close("closed");
    this.state.why = "closed";
  }

  #watched(events: PeerEvents): PeerEvents {
    return {
      ...events,
      onReady: (peer) => {
        this.state.peer = peer;
        this.state.why = null;
        this.state.isHung = false;
        this.state.connections++;
        this.#tries = 0;
        if (this.#isPaused) peer.pause();
        events.onReady(peer);
      },
      onClosed: (peer, why, isRefused) => {
        this.state.peer = null;
        this.#current = null;
        if (isRefused) this.state.refused++;
        this.state.isHung = peer.isHung;
        events.onClosed(peer, why, isRefused);
        this.#failed(why);
      },
    };
  }

  #start(): void {
    const dial = ++this.#dial;
    const isWanted = () => dial === this.#dial && !this.state.isClosed;
    const socket = handlers((socket) => {
      if (!isWanted()) return null;
      this.#timer?.[Symbol.dispose]();
      this.#current = peerOn(socket, this.#attachment);
      return this.#current;
    });
    const { handshakeMs } = this.#attachment.limits;
    const failed = (why: string, isHung: boolean) => {
      if (!isWanted() || this.#current !== null) return;
      this.state.isHung = isHung;
      this.#failed(why);
    };
    const late = `no connection within ${handshakeMs} ms`;
    this.#timer = this.#attachment.clock.after(handshakeMs, () => failed(late, true));
    const endpoint = this.#endpoint;
    const options = { data: null, socket };
    const dialled =
      endpoint.kind === "ipc"
        ? Bun.connect<Peer | null>({ ...options, unix: endpoint.path })
        : Bun.connect<Peer | null>({ ...options, hostname: endpoint.host, port: endpoint.port });
    dialled.catch((error) => failed(messageOf(error), false));
  }

  #failed(why: string): void {
    if (this.state.isClosed) return;
    this.#dial++;
    this.#timer?.[Symbol.dispose]();
    this.state.why = why;
    const { limits, random, clock } = this.#attachment;
    const ms = redialMs(Math.min(++this.#tries, 30), limits, random);
    this.#timer = clock.after(ms, () => this.#start());
  }
}
