import { chmodSync, chownSync } from "node:fs";
import {
  type Api,
  type ApiServices,
  type Caller,
  createApi,
  type LocalCaller,
  type PurgeOutcome,
  readPeers,
  readPulls,
  readStatus,
  type SessionReport,
  type SessionsReport,
  type StatusSources,
  serveUnix,
  toSeconds,
  type UnixServer,
} from "../api/index.ts";
import type { Config } from "../config/index.ts";
import type { ControlPlane, Operation, Sender } from "../control/index.ts";
import {
  assert,
  type Clock,
  HearthError,
  LAYER_ALL,
  messageOf,
  systemClock,
} from "../core/index.ts";
import { peerAllowed, peerOf, takeSocketPath } from "../engine/index.ts";
import type { SocketPeer } from "../native/index.ts";
import type { PersistReport, PurgeAddress } from "../store/index.ts";
import type { SessionInfo } from "../store/pins/index.ts";
import type { Agent } from "./agent.ts";
import { groupNumber } from "./credentials.ts";
import { type HttpParts, type HttpServer, serveHttp } from "./serve-http.ts";

export interface AgentApiOptions extends Omit<HttpParts, "clock"> {
  readonly commit: string;
}

/** Starts the HTTP server of a running agent, and its Unix socket if one is configured. */
export async function startApi(agent: Agent, options: AgentApiOptions): Promise<HttpServer> {
  const { config, health } = agent;
  const { logger } = options;
  const http = { ...options, clock: systemClock, health };
  const server = await serveHttp(config.api, http, async (common) => {
    const sources = sourcesOf(agent, options, () => api.refusals());
    const { flushByGet } = config.api;
    // The event loop also serves engines. A short backlog limits the connections accepted per turn.
    const limits = { flushByGet, backlog: 128 };
    const api: Api = createApi(servicesOf(agent, sources), { ...common, ...limits });
    // The first scrape takes 10 ms, because its code must be compiled. Scrape once now, before
    // engines connect and would have to wait.
    await agent.metrics.text(sources);
    return api;
  });
  for (const line of openDoors(config)) logger.warn(line);
  const socket = await openApiSocket(config, server.api, options).catch(async (thrown) => {
    await server[Symbol.asyncDispose]();
    throw thrown;
  });
  return {
    ...server,
    async [Symbol.asyncDispose]() {
      socket?.[Symbol.dispose]();
      await server[Symbol.asyncDispose]();
    },
  };
}

/** Returns one warning for each setting that allows unauthenticated callers to remove blocks. */
function openDoors({ api, nats }: Config): string[] {
  const isOpen = (api.tokenFile ?? api.tokensFile ?? api.tlsClientCaFile) === null;
  const lines: string[] = [];
  if (isOpen && api.loopbackRole === "purge") {
    lines.push("api.loopback_role is purge: every process on this host can remove blocks");
  }
  if (nats.url !== null && nats.role === "purge") {
    lines.push("nats.role is purge: every client that can publish commands can remove blocks");
  }
  return lines;
}

function servicesOf(agent: Agent, sources: () => StatusSources): ApiServices {
  // The API keeps these objects while the agent stops. A stopped control plane answers each command
  // with a receipt of status `rejected`.
  const { plane, holds, inspector, events } = agent.control;
  const { store, metrics, health } = agent;
  return {
    status: () => readStatus(sources()),
    readiness: () => {
      const reasons = agent.notReady;
      return { ready: reasons.length === 0, reasons };
    },
    health: () => health.list(),
    sessions: (after: number, limit: number) => sessionsOf(agent, after, limit),
    session: (id: bigint) => store.sessions.find(id).map((info) => sessionOf(agent, info)),
    ...operatorActions(agent, plane, systemClock),
    metricsText: () => metrics.text(sources),
    metricsContentType: metrics.contentType,
    control: { plane, holds, inspector, events, store },
    peers: {
      report: () => readPeers(agent.peers?.sources ?? null, systemClock),
      pulls: (name, max) => {
        const digestsOf = (bytes: Uint8Array) =>
          store.peerBlocks.find(bytes, DIGESTS_MAX).map(({ digest }) => digest);
        return readPulls(agent.peers?.puller.traces(null) ?? [], digestsOf, { name, max });
      },
    },
  };
}

/**
 * Returns a function that reads the agent's current state for status and metrics. It also works
 * while the agent stops.
 */
function sourcesOf(
  agent: Agent,
  options: AgentApiOptions,
  refusals: Api["refusals"],
): () => StatusSources {
  const { control, startedMs, health, lag, incarnation, store, engine, frames } = agent;
  const { engines } = store;
  const process = { ...options, clock: systemClock, startedMs, health, lag, incarnation };
  return () => ({
    ...process,
    ...{ engine, engines, frames },
    config: agent.config,
    state: agent.state,
    namespaces: agent.namespaces.keys(),
    refusals: refusals(),
    store: store.snapshot(),
    region: agent.region(),
    control: control.sources,
    bus: agent.bus?.sources ?? null,
    peers: agent.peers?.sources ?? null,
    publishing: agent.feed,
    devices: agent.devices.sources,
  });
}

function sessionsOf(agent: Agent, after: number, limit: number): SessionsReport {
  const page = agent.store.sessions.list({ namespace: null, after, max: limit });
  return { sessions: page.sessions.map((info) => sessionOf(agent, info)), next: page.next };
}

function sessionOf({ namespaces }: Agent, info: SessionInfo): SessionReport {
  const { namespace, session, idleMs, state } = info;
  const key = namespaces.keyOf(namespace);
  assert(key !== null, "a session's namespace has a key");
  return {
    id: session.toString(),
    namespace: key.toHex(),
    idle_seconds: toSeconds(idleMs),
    ...state,
  };
}

const MODE = 0o660;
/** Maximum block digests that one engine block hash may stand for. */
const DIGESTS_MAX = 64;

/**
 * Opens the HTTP API on the configured Unix socket. Returns null if none is configured. Throws
 * SOCKET_IN_USE if another agent serves that socket, CONFIG_INVALID if the socket cannot be
 * created.
 */
async function openApiSocket(
  config: Config,
  api: Pick<Api, "fetch">,
  { native, logger }: AgentApiOptions,
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
      logger.warn("API socket caller rejected", { pid, uid, gid });
      return null;
    }
    return { caller, uid: peer.uid, isOwner: isOwner(peer) };
  };
  const onFault = (of: string, thrown: unknown) =>
    logger.error("API request failed", { path: of, reason: String(thrown) });
  const listen = () => serveUnix({ fetch: api.fetch, callerOf, clock: systemClock, path, onFault });
  const server = await takeSocketPath(path, listen, "api.socket");
  chmodSync(path, MODE);
  if (group !== null) chownSync(path, process.getuid!(), group);
  return server;
}

/** Returns the id of the group that may connect to the API socket. Null: the agent's own group. */
function groupOf({ api, engine }: Config): number | null {
  if (api.socketGroup !== null) return groupNumber(api.socketGroup, "api.socket_group");
  return engine.socketGroup === null ? null : groupNumber(engine.socketGroup);
}

function isOwner({ uid }: SocketPeer): boolean {
  return uid === 0 || uid === process.getuid!();
}

/**
 * Identifies the caller of a socket connection. Returns null if the connecting process belongs
 * neither to root nor to the agent's user nor to the group.
 */
function callerOfPeer(
  peer: SocketPeer,
  group: number | null,
  groupRole: Caller["role"],
): Caller | null {
  const owner = { uid: process.getuid!(), gid: process.getgid!() };
  if (!peerAllowed(peer, owner, group)) return null;
  return {
    // Callers over loopback have the same name, so a pin made over either path has the same owner.
    name: "local",
    from: `local uid ${peer.uid} pid ${peer.pid}`,
    role: isOwner(peer) ? "purge" : groupRole,
    roleKey: "api.socket_role",
    account: `uid ${peer.uid}`,
  };
}

type Work = Pick<ApiServices, "purge" | "persist">;
/** Maximum blocks that one audit log line names. */
const NAMES_MAX = 8;

type Came = Pick<Operation, "status" | "counts">;

/**
 * Returns the HTTP API's purge and persist operations, which are not commands of the control
 * protocol. Each call writes one audit log line.
 */
export function operatorActions(
  agent: Pick<Agent, "purge" | "persist">,
  plane: Pick<ControlPlane, "note">,
  clock: Clock,
): Work {
  async function noted<T>(
    about: Pick<Operation, "type" | "blocks" | "names">,
    sender: Sender,
    work: () => Promise<T>,
    cameOf: (result: T) => Came,
  ): Promise<T> {
    const startedMs = clock.monotonicMs();
    const note = (came: Came, reason: string | null) => {
      const elapsedMs = Math.round((clock.monotonicMs() - startedMs) * 1_000) / 1_000;
      plane.note({ ...about, ...came, reason, elapsedMs }, sender);
    };
    try {
      const result = await work();
      note(cameOf(result), null);
      return result;
    } catch (thrown) {
      note({ status: "rejected", counts: {} }, reasonOf(thrown));
      throw thrown;
    }
  }

  return {
    purge(blocks, sender) {
      const addresses = blocks.map(({ digest, layer = LAYER_ALL }) => ({
        digest: Uint8Array.fromHex(digest),
        layer,
      }));
      const names = addresses.slice(0, NAMES_MAX).map(nameOf);
      const about = { type: "Purge", blocks: blocks.length, names };
      return noted(about, sender, () => agent.purge(addresses, sender.name), ofPurge);
    },
    persist(sender) {
      const about = { type: "Persist", blocks: null, names: [] };
      return noted(about, sender, () => agent.persist(), ofPersist);
    },
  };
}

/**
 * Formats a block name in the format that commands use: the digest, then the layer if one is given.
 */
function nameOf({ digest, layer }: PurgeAddress): string {
  return layer === LAYER_ALL ? digest.toHex() : `${digest.toHex()}/${layer}`;
}

function reasonOf(thrown: unknown): string {
  const code = thrown instanceof HearthError ? thrown.code : "INTERNAL";
  return `${code.toLowerCase()}: ${messageOf(thrown)}`;
}

function ofPurge(outcomes: readonly PurgeOutcome[]): Came {
  const counts = { done: 0, missing: 0, held: 0, failed: 0 };
  for (const outcome of outcomes) counts[outcome]++;
  return { status: counts.held + counts.failed === 0 ? "ok" : "partial", counts };
}

function ofPersist({ written, skipped, durable }: PersistReport): Came {
  return { status: durable && skipped === 0 ? "ok" : "partial", counts: { written, skipped } };
}
