import { existsSync, lstatSync, mkdirSync, unlinkSync } from "node:fs";
import { dirname } from "node:path";
import { HearthError, messageOf } from "../core/index.ts";
import { type Native, NativeError, type SocketPeer } from "../native/index.ts";

/** What `sun_path` takes, its zero left out. */
const PATH_BYTES_MAX = 107;

/** The key of the configuration that names a socket. */
type SocketKey = "engine.socket" | "api.socket";

/**
 * Makes way for a socket at `path` and listens there. A socket that a dead agent left is removed.
 * Throws SOCKET_IN_USE where a living one answers, CONFIG_INVALID where none can be made.
 */
export async function takeSocketPath<T>(
  path: string,
  listen: () => T,
  key: SocketKey = "engine.socket",
): Promise<T> {
  if (Buffer.byteLength(path) > PATH_BYTES_MAX) {
    const text = `the socket path is longer than ${PATH_BYTES_MAX} bytes: ${path}`;
    throw new HearthError("CONFIG_INVALID", text, { fix: `set ${key} to a shorter one` });
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
  const text = `the socket ${path} cannot be made: ${messageOf(cause)}`;
  return new HearthError("CONFIG_INVALID", text, {
    cause,
    fix: `set ${key} to a path whose folder this user may write to`,
  });
}

/** Removes a socket file that a dead agent left; refuses where a living one answers. */
async function removeStale(path: string, key: SocketKey): Promise<void> {
  if (!existsSync(path)) return;
  if (!lstatSync(path).isSocket()) {
    throw new HearthError("CONFIG_INVALID", `${key}: ${path} exists and is not a socket`, {
      fix: "name a path that the agent may use for itself",
    });
  }
  try {
    const probe = await Bun.connect({ unix: path, socket: { data() {} } });
    probe.terminate();
  } catch (error) {
    // Only this says that nobody listens; a full backlog or a lack of permission does not.
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

/** Why the kernel does not name a peer: it is gone, or this process has no descriptor left. */
type NoPeer = "gone" | "no_descriptors";

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
