import type { SocketPeer } from "../native/index.ts";

export interface SocketOwner {
  readonly uid: number;
  readonly gid: number;
}

/**
 * Who may connect: root, the agent's own user, and members of the socket's group. The file's mode
 * says the same, but a file can be made readable by mistake, and an inherited descriptor passes it
 * by.
 */
export function peerAllowed(
  peer: SocketPeer,
  owner: SocketOwner,
  socketGroup: number | null,
): boolean {
  if (peer.uid === 0 || peer.uid === owner.uid) return true;
  const group = socketGroup ?? owner.gid;
  return peer.gid === group || peer.groups.includes(group);
}
