import { existsSync, lstatSync, mkdirSync, unlinkSync } from "node:fs";
import { dirname } from "node:path";
import { HearthError, messageOf } from "../core/index.ts";
import { type Native, NativeError, type SocketPeer } from "../native/index.ts";

/** Maximum bytes of a Unix socket's path: the size of `sun_path` without its terminating zero. */
const PATH_BYTES_MAX = 107;

/** Configuration key that names the socket, for error messages. */
type SocketKey = "engine.socket" | "api.socket";

/**
 * Listens on a Unix socket at `path`. Removes a socket file that a dead agent left there. Throws
 * SOCKET_IN_USE if a living agent listens there, and CONFIG_INVALID if the socket cannot be
 * created.
 */
export async function takeSocketPath<T>(
  path: string,
  listen: () => T,
  key: SocketKey = "engine.socket",
): Promise<T> {
  if (Buffer.byteLength(path) > PATH_BYTES_MAX) {
    const text = `the socket path is longer than ${PATH_BYTES_MAX} bytes: ${path}`;
    throw new HearthError("CONFIG_INVALID", text, { fix: `set ${key} to a shorter path` });
  }
  try {
    mkdirSync(dirname(path), { recursive: true, mode: 0o750 });
    await removeStale(path, key);
    return listen();
  } catch (cause) {
    throw cannotListen(path, key, cause);
  }
}

function cannotListen(path: string, key: SocketKey, cause: unknown): HearthError {
  if (cause instanceof HearthError) return cause;
  const text = `cannot create the socket ${path}: ${messageOf(cause)}`;
  return new HearthError("CONFIG_INVALID", text, {
    cause,
    fix: `set ${key} to a path whose folder this user may write to`,
  });
}

/** Removes a socket file that a dead agent left behind. Throws if a living agent listens on it. */
async function removeStale(path: string, key: SocketKey): Promise<void> {
  if (!existsSync(path)) return;
  if (!lstatSync(path).isSocket()) {
    throw new HearthError("CONFIG_INVALID", `${key}: ${path} exists and is not a socket`, {
      fix: "set a path that no other file uses",
    });
  }
  try {
    const probe = await Bun.connect({ unix: path, socket: { data() {} } });
    probe.terminate();
  } catch (error) {
    // Only ECONNREFUSED proves that no process listens. A full backlog or a missing permission
    // causes other errors.
    if ((error as NodeJS.ErrnoException).code === "ECONNREFUSED") {
      unlinkSync(path);
      return;
    }
  }
  throw new HearthError("SOCKET_IN_USE", `another agent answers at ${path}`, {
    fix: `stop it, or set ${key} to another path`,
  });
}

export interface SocketOwner {
  readonly uid: number;
  readonly gid: number;
}

/**
 * Returns true if a peer process may connect: root, the agent's own user, and members of the
 * socket's group. The file mode enforces the same rule, but it can be changed by mistake, and an
 * inherited descriptor bypasses it.
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

/**
 * Reason why the peer process is unknown: it has disconnected, or this process has no free file
 * descriptor.
 */
type NoPeer = "gone" | "no_descriptors";

/**
 * Returns the process at the other end of the socket, as the kernel recorded it at connect time.
 */
export function peerOf(native: Native, socket: object): SocketPeer | NoPeer {
  try {
    return native.socketPeer(socketFd(socket));
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    return error.status === "no_descriptors" ? "no_descriptors" : "gone";
  }
}

/** Returns the socket's file descriptor. Bun's sockets have one that its types do not declare. */
export function socketFd(socket: object): number {
  return (socket as { readonly fd: number }).fd;
}
