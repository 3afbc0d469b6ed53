import { readFileSync } from "node:fs";
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
  return peer.gid === group || groupsOf(peer.pid).includes(group);
}

/** Supplementary groups of a process; none where it is gone or hidden. */
function groupsOf(pid: number): number[] {
  try {
    const status = readFileSync(`/proc/${pid}/status`, "utf8");
    const line = /^Groups:\s*(.*)$/m.exec(status)?.[1] ?? "";
    return line.split(/\s+/).filter(Boolean).map(Number);
  } catch {
    return [];
  }
}
