import { type Native, NativeError, type SocketPeer } from "../native/index.ts";

/** Why the kernel does not name a peer: it is gone, or this process has no descriptor left. */
export type NoPeer = "gone" | "no_descriptors";

/** The process at the other end, as it was when it connected. */
export function peerOf(native: Native, socket: object): SocketPeer | NoPeer {
  try {
    return native.socketPeer(socketFd(socket));
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    return error.status === "no_descriptors" ? "no_descriptors" : "gone";
  }
}

/** Bun's sockets have a descriptor; its types do not say so. */
export function socketFd(socket: object): number {
  return (socket as { readonly fd: number }).fd;
}
