import { existsSync, lstatSync, mkdirSync, unlinkSync } from "node:fs";
import { dirname } from "node:path";
import { HearthError, messageOf } from "../core/index.ts";

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
