import { chmodSync, chownSync } from "node:fs";
import {
  type Api,
  type ApiServer,
  type ApiServices,
  type Caller,
  type ControlServices,
  createApi,
  type LocalCaller,
  type PurgeOutcome,
  readAccess,
  type SessionReport,
  type SessionsReport,
  serveUnix,
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
import type { Native, SocketPeer } from "../native/index.ts";
import { type Logger, watchDescriptors } from "../observability/index.ts";
import type { PersistReport, PurgeAddress } from "../store/index.ts";
import type { SessionInfo } from "../store/pins/index.ts";
import type { Agent } from "./agent.ts";
import { seconds, statusOf } from "./agent-status.ts";
import { groupNumber } from "./credentials.ts";
import { devicesSnapshot } from "./devices-service.ts";
import { peerServices, peersSnapshot } from "./peer-reports.ts";
import { feedSnapshot } from "./publishing-service.ts";

export interface AgentApiOptions {
  readonly native: Native;
  readonly logger: Logger;
  readonly version: string;
  readonly commit: string;
}

export interface AgentApi extends ApiServer {
  /** Rereads the token files. If one is invalid, the previous tokens stay in force. */
  reload(): Promise<void>;
}

/** Starts the HTTP server of a running agent. Reports are read from the agent's parts. */
export async function startApi(agent: Agent, options: AgentApiOptions): Promise<AgentApi> {
  const { listen, flushByGet } = agent.config.api;
  const { logger, version } = options;
  const { access, warnings, reload } = await readAccess(agent.config.api);
  const warn = (lines: readonly string[]) => {
    for (const line of lines) logger.warn(line, {});
  };
  warn(warnings);
  observe(agent, logger);
  const api = createApi(servicesOf(agent, options), {
    version,
    clock: systemClock,
    access,
    // Engines share the event loop with this API, so that few connections are accepted in one turn.
    backlog: 128,
    ...{ flushByGet, native: options.native },
    onFault: (path, thrown) => logger.error("API request failed", { path, reason: String(thrown) }),
    onRefused: ({ code, address, count }) =>
      logger.warn("API callers rejected", { code, address, count }),
  });
  agent.metrics.observeApi(() => api.refusals());
  for (const line of openDoors(agent.config)) logger.warn(line);
  // The first scrape takes 10 ms, because its code is not compiled yet: no engine waits for it now.
  await agent.metrics.text();
  const server = api.listen({ host: listen.host, port: listen.port });
  const socket = await openApiSocket(agent.config, api, options).catch(async (thrown) => {
    await server[Symbol.asyncDispose]();
    throw thrown;
  });
  const descriptors = watchDescriptors(systemClock, agent.health);
  return {
    ...server,
    async [Symbol.asyncDispose]() {
      descriptors[Symbol.dispose]();
      socket?.[Symbol.dispose]();
      await server[Symbol.asyncDispose]();
    },
    async reload() {
      try {
        warn(await reload());
      } catch (error) {
        logger.error(`token reload failed: ${messageOf(error)}`);
      }
    },
  };
}

/** Warnings for settings that allow unauthenticated callers to remove blocks. */
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

function servicesOf(agent: Agent, options: AgentApiOptions): ApiServices {
  return {
    status: () => statusOf(agent, options),
    readiness: () => {
      const reasons = agent.notReady;
      return { ready: reasons.length === 0, reasons };
    },
    health: () => agent.health.list(),
    sessions: (after: number, limit: number) => sessionsOf(agent, after, limit),
    session: (id: bigint) => agent.store.sessions.find(id).map((info) => sessionOf(agent, info)),
    ...operatorActions(agent, agent.control.plane, systemClock),
    metricsText: () => agent.metrics.text(),
    metricsContentType: agent.metrics.contentType,
    control: controlOf(agent),
    peers: peerServices(() => agent.peers, agent.store, systemClock),
  };
}

/** Stays valid while the agent stops: a stopped control plane answers with receipts that say so. */
function controlOf({ control, store }: Agent): ControlServices {
  const { plane, holds, inspector, events } = control;
  return {
    submit: (...command) => plane.submit(...command),
    find: (...command) => plane.find(...command),
    flush: (sender) => plane.flush(sender),
    unfence: (issuer, sender) => plane.unfence(issuer, sender),
    holds: (query) => holds.list(query),
    figures: (owner) => holds.figures(owner),
    tree: (query) => inspector.tree(query),
    explain: (query) => inspector.explain(query),
    storeSeconds: () => store.nowSeconds(),
    events: (after, max) => events.page(after, max),
  };
}

function observe(agent: Agent, logger: Logger): void {
  const { metrics, engine, store, frames, lag } = agent;
  metrics.observeStore(() => {
    const store_ = store.snapshot();
    const slots = store_.classes.reduce((sum, { slots }) => sum + slots, 0);
    return {
      tiers: {
        ram: { blocks: store_.ramBlocks, bytes: store_.ramBytes },
        gpu: { blocks: store_.gpuBlocks, bytes: store_.gpuBytes },
        ssd: { blocks: store_.ssd?.blocks ?? 0, bytes: store_.ssd?.bytes ?? 0 },
      },
      slots: {
        used: store_.slotsUsed,
        free: slots - store_.slotsUsed,
        quarantined: store_.slotsQuarantined,
      },
      arena: {
        bytes: store_.arenaBytes,
        readyBytes: store_.readyBytes,
        lockedBytes: agent.region().lockedBytes,
      },
      table: { blocks: store_.tableNodes, capacity: store_.tableNodesMax },
      checks: store_.checks,
      sessions: store_.sessions,
      ssd: store_.ssd,
      stats: store_.stats,
    };
  });
  metrics.observeEngine(() => ({
    connections: engine.connections,
    slotsHeld: engine.held().held,
    frames: frames.list(),
    lookupsWaiting: store.engines.lookups.size,
    announcedBlocks: store.engines.announcements.size,
    reservations: store.engines.book.stats,
    stats: engine.stats,
  }));
  const { control } = agent;
  metrics.observeControl(() => {
    const snapshot = control.snapshot();
    const { bus } = agent;
    const refused = { ...snapshot.refused };
    for (const [word, unread] of Object.entries(bus?.unreadCommands ?? {})) {
      refused[word] = (refused[word] ?? 0) + unread;
    }
    return { ...snapshot, refused, bus: bus?.snapshot() ?? null };
  });
  const { peers, feed } = agent;
  if (peers !== null) metrics.observePeers(() => peersSnapshot(peers));
  if (feed !== null) metrics.observeFeed(() => feedSnapshot(feed));
  metrics.observeDevices(() => devicesSnapshot(agent.devices, engine.stats));
  metrics.observeHealth(() => agent.health.counts());
  metrics.observeProcess(() => ({
    loop: lag,
    logLinesDropped: logger.dropped,
  }));
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
    idle_seconds: seconds(idleMs),
    ...state,
  };
}

interface ApiSocketOptions {
  readonly native: Native;
  readonly logger: Logger;
}

const MODE = 0o660;

/**
 * Opens the HTTP API on a Unix socket. Null if none is configured. Throws SOCKET_IN_USE if another
 * agent answers on it, CONFIG_INVALID if it cannot be created.
 */
async function openApiSocket(
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

/** Group that may connect. Null: the agent's own group. */
function groupOf({ api, engine }: Config): number | null {
  if (api.socketGroup !== null) return groupNumber(api.socketGroup, "api.socket_group");
  return engine.socketGroup === null ? null : groupNumber(engine.socketGroup);
}

function isOwner({ uid }: SocketPeer): boolean {
  return uid === 0 || uid === process.getuid!();
}

/** Returns null unless the process belongs to root, the agent's user or the group. */
function callerOfPeer(
  peer: SocketPeer,
  group: number | null,
  groupRole: Caller["role"],
): Caller | null {
  const owner = { uid: process.getuid!(), gid: process.getgid!() };
  if (!peerAllowed(peer, owner, group)) return null;
  return {
    // The same caller as over loopback, so that pins made either way have one owner.
    name: "local",
    from: `local uid ${peer.uid} pid ${peer.pid}`,
    role: isOwner(peer) ? "purge" : groupRole,
    roleKey: "api.socket_role",
    account: `uid ${peer.uid}`,
  };
}

type Work = Pick<ApiServices, "purge" | "persist">;
/** Maximum block names per audit log line. */
const NAMES_MAX = 8;

type Came = Pick<Operation, "status" | "counts">;

/** Operators' actions on blocks outside the command protocol. Each writes an audit log line. */
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

/** Formats the block name as commands do. */
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
