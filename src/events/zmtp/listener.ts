import { lstatSync, unlinkSync } from "node:fs";
import type { TCPSocketListener, UnixSocketListener } from "bun";
import { HearthError, messageOf } from "../../core/index.ts";
import { type Attachment, handlers, peerOn } from "./attach.ts";
import { formatEndpoint, type ZmtpEndpoint } from "./endpoint.ts";
import type { Peer, PeerEvents } from "./peer.ts";

type Listening = TCPSocketListener<Peer | null> | UnixSocketListener<Peer | null>;

/** Takes connections at an endpoint until it is closed. */
export class Listener {
  /** As it listens, with the port that was given. */
  readonly endpoint: string;
  /** All connections, those with an outstanding handshake too. */
  readonly peers = new Set<Peer>();
  readonly #listening: Listening;
  readonly #path: string | null;
  connections = 0;
  refused = 0;

  private constructor(listening: Listening, endpoint: ZmtpEndpoint) {
    this.#listening = listening;
    this.#path = endpoint.kind === "ipc" ? endpoint.path : null;
    const isTcp = endpoint.kind === "tcp" && "port" in listening;
    const port = isTcp ? (listening as TCPSocketListener).port : 0;
    this.endpoint = formatEndpoint(isTcp ? { ...endpoint, port } : endpoint);
  }

  /**
   * Throws ZMTP_UNAVAILABLE where it cannot listen. A Unix socket that nobody answers any more is
   * replaced.
   */
  static async open(endpoint: ZmtpEndpoint, attachment: Attachment): Promise<Listener> {
    const listeners: Listener[] = [];
    const watched = { ...attachment, events: watch(attachment.events, listeners) };
    const socket = handlers((socket) => {
      const listener = listeners[0];
      if (listener === undefined || listener.peers.size >= attachment.limits.peersMax) return null;
      const peer = peerOn(socket, watched);
      listener.peers.add(peer);
      return peer;
    });
    try {
      if (endpoint.kind === "ipc") await removeStale(endpoint.path);
      const options = { data: null, socket };
      const listening: Listening =
        endpoint.kind === "ipc"
          ? Bun.listen<Peer | null>({ ...options, unix: endpoint.path })
          : Bun.listen<Peer | null>({ ...options, hostname: endpoint.host, port: endpoint.port });
      const listener = new Listener(listening, endpoint);
      listeners.push(listener);
      return listener;
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

/** Bookkeeping around the events of a listener's peers. */
function watch(events: PeerEvents, listeners: readonly Listener[]): PeerEvents {
  return {
    ...events,
    onReady: (peer) => {
      listeners[0]!.connections++;
      events.onReady(peer);
    },
    onClosed: (peer, why, isRefused) => {
      const listener = listeners[0]!;
      listener.peers.delete(peer);
      if (isRefused) listener.refused++;
      events.onClosed(peer, why, isRefused);
    },
  };
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
    // Only this says that nobody listens there.
    if ((error as NodeJS.ErrnoException).code === "ECONNREFUSED") return removeSocket(path);
  }
  throw new HearthError("ZMTP_UNAVAILABLE", `somebody else listens at ipc://${path}`);
}
