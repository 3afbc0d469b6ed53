import { chmodSync, chownSync } from "node:fs";
import {
  type Api,
  type Caller,
  type LocalCaller,
  serveUnix,
  type UnixServer,
} from "../api/index.ts";
import type { Config } from "../config/index.ts";
import { systemClock } from "../core/index.ts";
import { peerAllowed, peerOf, takeSocketPath } from "../engine/index.ts";
import type { Native, SocketPeer } from "../native/index.ts";
import type { Logger } from "../observability/index.ts";
import { groupNumber } from "./groups.ts";

export interface ApiSocketOptions {
  readonly native: Native;
  readonly logger: Logger;
}

const MODE = 0o660;

/**
 * The HTTP API on a Unix socket; null if the configuration names none. Throws SOCKET_IN_USE if
 * another agent answers there, CONFIG_INVALID if it cannot be made.
 */
export async function openApiSocket(
  config: Config,
  api: Pick<Api, "fetch">,
  { native, logger }: ApiSocketOptions,
): Promise<UnixServer | null> {
  const { socket: path, socketRole } = config.api;
  if (path === null) return null;
  const group = groupOf(config);
  const callerOf = (socket: object): LocalCaller | null => {
    const peer = peerOf(native, socket);
    if (typeof peer === "string") return null;
    if (peer.pidFd !== null) native.closeFd(peer.pidFd);
    const caller = callerOfPeer(peer, group, socketRole);
    if (caller === null) {
      const { pid, uid, gid } = peer;
      logger.warn("a caller of the API socket was not let in", { pid, uid, gid });
      return null;
    }
    return { caller, uid: peer.uid, isOwner: isOwner(peer) };
  };
  const onFault = (of: string, thrown: unknown) =>
    logger.error("a request to the API failed", { path: of, reason: String(thrown) });
  const listen = () => serveUnix({ fetch: api.fetch, callerOf, clock: systemClock, path, onFault });
  const server = await takeSocketPath(path, listen, "api.socket");
  chmodSync(path, MODE);
  if (group !== null) chownSync(path, process.getuid!(), group);
  return server;
}

/** The group that may connect; null: the agent's own. */
function groupOf({ api, engine }: Config): number | null {
  if (api.socketGroup !== null) return groupNumber(api.socketGroup, "api.socket_group");
  return engine.socketGroup === null ? null : groupNumber(engine.socketGroup);
}

function isOwner({ uid }: SocketPeer): boolean {
  return uid === 0 || uid === process.getuid!();
}

/** Null for a process that is neither root's, the agent's user's nor of the group. */
export function callerOfPeer(
  peer: SocketPeer,
  group: number | null,
  groupRole: Caller["role"],
): Caller | null {
  const owner = { uid: process.getuid!(), gid: process.getgid!() };
  if (!peerAllowed(peer, owner, group)) return null;
  return {
    // As over loopback: pins of either way have one owner.
    name: "local",
    from: `local uid ${peer.uid} pid ${peer.pid}`,
    role: isOwner(peer) ? "purge" : groupRole,
    roleKey: "api.socket_role",
    account: `uid ${peer.uid}`,
  };
}
