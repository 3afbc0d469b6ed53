import type { Socket } from "bun";
import { type Clock, loopTurns, type Random } from "../../core/index.ts";
import type { PARTNERS } from "./commands.ts";
import type { ZmtpLimits } from "./limits.ts";
import { Peer, type PeerEvents } from "./peer.ts";

/** What every socket is made with. */
export interface Attachment {
  readonly type: keyof typeof PARTNERS;
  readonly limits: ZmtpLimits;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: PeerEvents;
}

/** Bun's socket with our connection on it; null before it opened and after it was refused. */
export type PeerSocket = Socket<Peer | null>;

/** A silent connection is probed by the kernel after so long, where the peer speaks ZMTP 3.0. */
const KEEP_ALIVE_MS = 15_000;

/** How Bun's socket is tied to a `Peer`, whichever end dialled. */
export function handlers(
  open: (socket: PeerSocket) => Peer | null,
): Bun.SocketHandler<Peer | null> {
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

export function peerOn(socket: PeerSocket, attachment: Attachment): Peer {
  const { type, limits, clock, events } = attachment;
  socket.setKeepAlive(true, KEEP_ALIVE_MS);
  socket.setNoDelay(true);
  return new Peer({ wire: socket, type, limits, clock, events });
}
