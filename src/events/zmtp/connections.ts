import { lstatSync, unlinkSync } from "node:fs";
import type { Socket, TCPSocketListener, UnixSocketListener } from "bun";
import {
  type Clock,
  HearthError,
  loopTurns,
  messageOf,
  type Random,
  randomBelow,
} from "../../core/index.ts";
import { Peer, type PeerEvents } from "./peer.ts";
import type { PARTNERS } from "./wire.ts";
import { formatEndpoint, type ZmtpEndpoint, type ZmtpLimits } from "./zmtp.ts";

const JITTER = 0.25;

/** Returns the wait in ms before redial number `tries`, counted from 1. */
function redialMs(tries: number, limits: ZmtpLimits, random: Random): number {
  const ms = Math.min(limits.redialFirstMs * 2 ** (tries - 1), limits.redialMaxMs);
  return ms * (1 - JITTER) + randomBelow(random, Math.ceil(2 * JITTER * ms));
}

/** State of a connection that is redialed. */
export interface DialerState {
  peer: Peer | null;
  why: string | null;
  isHung: boolean;
  connections: number;
  refused: number;
  isClosed: boolean;
}

/** Keeps one connection to an endpoint and redials after each disconnect, until it is closed. */
export class Dialer {
  readonly state: DialerState = {
    peer: null,
    why: "not connected yet",
    isHung: false,
    connections: 0,
    refused: 0,
    isClosed: false,
  };
  readonly #endpoint: ZmtpEndpoint;
  readonly #attachment: Attachment;
  #tries = 0;
  /** Number of the latest dial. Events of earlier dials are ignored. */
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

type Listening = TCPSocketListener<Peer | null> | UnixSocketListener<Peer | null>;

/** Accepts connections at an endpoint until it is closed. */
export class Listener {
  /** The bound endpoint, with the port that the kernel assigned. */
  readonly endpoint: string;
  /** All connections, including those in the handshake. */
  readonly peers = new Set<Peer>();
  readonly #listening: Listening;
  readonly #path: string | null;

  private constructor(endpoint: ZmtpEndpoint, attachment: Attachment) {
    const { events } = attachment;
    const onClosed: PeerEvents["onClosed"] = (peer, why, isRefused) => {
      this.peers.delete(peer);
      events.onClosed(peer, why, isRefused);
    };
    const watched = { ...attachment, events: { ...events, onClosed } };
    const socket = handlers((socket) => {
      if (this.peers.size >= attachment.limits.peersMax) return null;
      const peer = peerOn(socket, watched);
      this.peers.add(peer);
      return peer;
    });
    const options = { data: null, socket };
    if (endpoint.kind === "ipc") {
      this.#path = endpoint.path;
      this.#listening = Bun.listen<Peer | null>({ ...options, unix: endpoint.path });
      this.endpoint = formatEndpoint(endpoint);
      return;
    }
    const { host: hostname, port } = endpoint;
    const listening = Bun.listen<Peer | null>({ ...options, hostname, port });
    this.#path = null;
    this.#listening = listening;
    this.endpoint = formatEndpoint({ ...endpoint, port: listening.port });
  }

  /**
   * Binds the endpoint; replaces a Unix socket file that no process listens on. Throws
   * ZMTP_UNAVAILABLE if it cannot listen.
   */
  static async open(endpoint: ZmtpEndpoint, attachment: Attachment): Promise<Listener> {
    try {
      if (endpoint.kind === "ipc") await removeStale(endpoint.path);
      return new Listener(endpoint, attachment);
    } catch (cause) {
      if (cause instanceof HearthError) throw cause;
      const text = `cannot listen at ${formatEndpoint(endpoint)}: ${messageOf(cause)}`;
      throw new HearthError("ZMTP_UNAVAILABLE", text, { cause });
    }
  }

  close(): void {
    this.#listening.stop(true);
    for (const peer of [...this.peers]) peer.close("closed");
    if (this.#path !== null) removeSocket(this.#path);
  }
}

function isSocket(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSocket() ?? false;
}

function removeSocket(path: string): void {
  if (isSocket(path)) unlinkSync(path);
}

async function removeStale(path: string): Promise<void> {
  if (!isSocket(path)) return;
  try {
    const probe = await Bun.connect({ unix: path, socket: { data() {} } });
    probe.terminate();
  } catch (error) {
    // Only ECONNREFUSED proves that no process listens on the socket file.
    if ((error as NodeJS.ErrnoException).code === "ECONNREFUSED") return removeSocket(path);
  }
  throw new HearthError("ZMTP_UNAVAILABLE", `another process listens at ipc://${path}`);
}

/** Parameters and callbacks that all connections of one socket share. */
export interface Attachment {
  readonly type: keyof typeof PARTNERS;
  readonly limits: ZmtpLimits;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: PeerEvents;
}

/**
 * A Bun socket whose data is its connection. Null before the connection is open and after it was
 * rejected.
 */
type PeerSocket = Socket<Peer | null>;

/**
 * Idle ms after which the kernel probes the connection with TCP keep-alive. Peers with ZMTP 3.0
 * have no heartbeats.
 */
const KEEP_ALIVE_MS = 15_000;

/**
 * Returns socket handlers that pass events of a Bun socket to its `Peer`. Dialed and accepted
 * sockets use the same ones.
 */
function handlers(open: (socket: PeerSocket) => Peer | null): Bun.SocketHandler<Peer | null> {
  return {
    open: (socket) => {
      loopTurns.touch();
      socket.data = open(socket);
      if (socket.data === null) socket.terminate();
    },
    data: (socket, chunk) => socket.data?.receive(chunk),
    drain: (socket) => socket.data?.drained(),
    end: (socket) => socket.data?.close("the peer closed the connection"),
    close: (socket) => socket.data?.close("the connection was closed"),
    error: (socket, error) => socket.data?.close(error.message),
  };
}

function peerOn(socket: PeerSocket, attachment: Attachment): Peer {
  const { type, limits, clock, events } = attachment;
  socket.setKeepAlive(true, KEEP_ALIVE_MS);
  socket.setNoDelay(true);
  return new Peer({ wire: socket, type, limits, clock, events });
}
