import { chmodSync, chownSync } from "node:fs";
import type { Socket, UnixSocketListener } from "bun";
import { loopTurns, messageOf, sleep } from "../core/index.ts";
import type { GpuSink } from "../store/index.ts";
import { Connection, type FrameHandler } from "./connection.ts";
import { type ConnectionShare, EngineShares } from "./engine-shares.ts";
import { GpuPlane } from "./gpu-copies.ts";
import { GpuWarming } from "./gpu-warming.ts";
import { createFrameHandler } from "./handlers.ts";
import { FrameStatus } from "./protocol/index.ts";
import {
  type EngineLimits,
  type EngineServerOptions,
  type EngineStats,
  emptyEngineStats,
} from "./server-options.ts";
import { peerAllowed, peerOf, type SocketOwner, socketFd, takeSocketPath } from "./socket-file.ts";

const HELLO_MS = 5_000;
/** A periodic check that runs this many ms late shows that the agent's process was paused. */
const PAUSE_MS = 500;
/** Maximum ended connections of one process whose slots stay reserved until the process exits. */
const ORPHANS_A_PROCESS = 16;
/**
 * Maximum rejected connections kept open until their HELLO arrives, so that the client can read the
 * reason. Further ones close immediately.
 */
const REJECTED_MAX = 64;
/**
 * Number of ended connections after which a garbage collection is requested. Closed connections
 * leave old objects, which the runtime alone collects only when the heap has doubled. An immediate,
 * synchronous collection would block the event loop for 10 to 50 ms whenever clients connect and
 * disconnect in a loop.
 */
const ENDINGS_A_SWEEP = 128;
/** A shortage of file descriptors is reported for this many ms after it last occurred. */
const DESCRIPTORS_MS = 30_000;

interface Client {
  readonly connection: Connection;
  readonly pid: number;
  readonly share: ConnectionShare;
  /** Disposing it stops watching the client's process for its exit. */
  watch: Disposable | null;
  dead: boolean;
  readonly openedMs: number;
}

/** A Bun socket whose data is its client. */
type ClientSocket = Socket<Client | null>;

/** Server of the engine plane: one Unix socket, many engines. */
export class EngineServer implements AsyncDisposable {
  readonly stats: EngineStats = emptyEngineStats();
  readonly #options: EngineServerOptions;
  readonly #clients = new Set<Client>();
  /** Ended connections whose process may still access the slots that they held. */
  readonly #orphans = new Set<Client>();
  readonly #rejected = new Set<Client>();
  readonly #openings = new Openings<ClientSocket>();
  readonly #handle: FrameHandler;
  readonly #gpu: GpuPlane;
  readonly #warm: GpuWarming;
  readonly #shares: EngineShares;
  #listener: UnixSocketListener<Client | null> | null = null;
  #timer: Disposable | null = null;
  #draining = false;
  #limits: EngineLimits;
  #nextId = 1;
  #endings = 0;
  #checkedMs = 0;
  #pauseMs = Number.POSITIVE_INFINITY;

  constructor(options: EngineServerOptions) {
    this.#options = options;
    this.#limits = options.limits;
    const { clock, limits, log, native, store } = options;
    this.#shares = new EngineShares(limits, () => store.arena.readyBytes());
    const { gpus = null } = options;
    this.#gpu = new GpuPlane({ gpus, native, stats: this.stats, clock, log });
    this.#warm = new GpuWarming({ clock, itemsMax: limits.itemsMax });
    this.#handle = createFrameHandler({
      ...options,
      gpu: this.#gpu,
      warm: this.#warm,
      digests: options.native,
      nowMs: () => options.clock.monotonicMs(),
      draining: () => this.#draining,
      sendFd: (connection, fd) => this.#sendWithFd(connection, fd),
      onFault: (connection, error) => this.#fault(connection, error),
    });
  }

  /** Changes limits while engines are connected. */
  setLimits(limits: Partial<EngineLimits>): void {
    this.#limits = { ...this.#limits, ...limits };
    this.#shares.setLimits(this.#limits);
  }

  get connections(): number {
    return this.#clients.size;
  }

  /** Receives blocks in RAM and offers them to waiting engines. */
  get gpuSink(): GpuSink {
    return this.#warm;
  }

  /**
   * Counts the slots that connections hold (`held`), and those of ended connections that a process
   * or GPU may still access (`quarantined`).
   */
  held(): { readonly held: number; readonly quarantined: number } {
    const sum = (clients: Set<Client>) => {
      let total = 0;
      for (const { connection } of clients) total += connection.greeted?.holder.held ?? 0;
      return total;
    };
    return { held: sum(this.#clients), quarantined: sum(this.#orphans) + this.#gpu.orphans };
  }

  /** Starts listening. Throws SOCKET_IN_USE if another agent listens on the socket. */
  async start(): Promise<void> {
    const { socketPath } = this.#options;
    this.#listener = await takeSocketPath(socketPath, () => this.#listen(socketPath));
    const { socketGroup, limits, clock } = this.#options;
    chmodSync(socketPath, 0o660);
    if (socketGroup !== null) chownSync(socketPath, process.getuid!(), socketGroup);
    const checkMs = Math.max(10, Math.min(limits.leaseMs, limits.unreadMs, HELLO_MS) / 4);
    this.#checkedMs = clock.monotonicMs();
    this.#pauseMs = checkMs + PAUSE_MS;
    this.#timer = clock.every(checkMs, () => this.#checkTimes());
  }

  #listen(path: string): UnixSocketListener<Client | null> {
    return Bun.listen<Client | null>({
      unix: path,
      data: null,
      socket: {
        open: (socket) => this.#openings.came(socket, () => this.#open(socket)),
        data: (socket, chunk) => this.#guarded(socket, chunk),
        drain: (socket) => this.#guarded(socket, null),
        close: (socket) => this.#gone(socket),
        error: (socket) => this.#gone(socket),
      },
    });
  }

  #open(socket: ClientSocket): void {
    const { native, clock, log } = this.#options;
    const peer = peerOf(native, socket);
    if (typeof peer === "string") {
      this.stats.refusedPeers++;
      if (peer === "no_descriptors") {
        const text = "engine rejected: out of file descriptors to watch its process";
        this.#options.health?.raise("FD_LIMIT", text, { forMs: DESCRIPTORS_MS });
      }
      socket.terminate();
      return;
    }
    const owner: SocketOwner = { uid: process.getuid!(), gid: process.getgid!() };
    const allowed = peerAllowed(peer, owner, this.#options.socketGroup);
    if (!allowed || peer.pidFd === null) {
      this.stats.refusedPeers++;
      log("warn", "engine rejected: user or group not allowed", {
        pid: peer.pid,
        uid: peer.uid,
        gid: peer.gid,
      });
      if (peer.pidFd !== null) native.closeFd(peer.pidFd);
      socket.terminate();
      return;
    }
    const share = this.#shares.open({ pid: peer.pid, uid: peer.uid, pidFd: peer.pidFd });
    const connection = new Connection(this.#nextId++, socket, {
      limits: this.#limits,
      handle: this.#handle,
      uid: peer.uid,
      source: share.source,
      share,
      nowMs: () => clock.monotonicMs(),
      onFault: (failed, error) => this.#fault(failed, error),
    });
    const openedMs = clock.monotonicMs();
    const client: Client = { connection, pid: peer.pid, share, watch: null, dead: false, openedMs };
    socket.data = client;
    this.#fds.set(connection, socketFd(socket));
    this.#clients.add(client);
    this.stats.connected++;
    const refusal = share.refusal ?? this.#lostTooMany(peer.pid);
    if (refusal === null) {
      this.#watch(client, peer.pidFd);
      return;
    }
    native.closeFd(peer.pidFd);
    this.#reject(client, refusal);
  }

  #lostTooMany(pid: number): string | null {
    let count = 0;
    for (const orphan of this.#orphans) if (orphan.pid === pid) count++;
    if (count < ORPHANS_A_PROCESS) return null;
    return "too many connections ended while this process held slots: release slots, then close";
  }

  /**
   * Watches the engine's process for its exit. If the watch cannot be set up, rejects the
   * connection: its slots could never be reclaimed.
   */
  #watch(client: Client, pidFd: number): void {
    const { queue, native } = this.#options;
    try {
      client.watch = queue.watch(pidFd, () => this.#died(client));
    } catch (error) {
      native.closeFd(pidFd);
      const text = `cannot watch this engine's process: ${messageOf(error)}`;
      this.#reject(client, text);
    }
  }

  /**
   * Sends the reason for the rejection at once, but closes the connection only when the client's
   * HELLO has arrived. If the connection closed earlier, the client could not read the reason.
   */
  #reject(client: Client, text: string): void {
    const { connection } = client;
    this.#clients.delete(client);
    client.share[Symbol.dispose]();
    this.stats.refusedPeers++;
    if (this.#rejected.size < REJECTED_MAX) this.#rejected.add(client);
    connection.notify(FrameStatus.limit, text);
    if (!this.#rejected.has(client)) connection.hangUp();
  }

  readonly #fds = new WeakMap<Connection, number>();

  /**
   * Writes the pending output, with the arena's file descriptor on its first byte. Null if the
   * socket has ended.
   */
  #sendWithFd(connection: Connection, fd: number): number | null {
    const socket = this.#fds.get(connection);
    if (socket === undefined) return null;
    const sent = this.#options.native.sendFd(socket, connection.takePending(), fd);
    return typeof sent === "number" ? sent : null;
  }

  /**
   * Handles one socket event and catches its errors. `chunk` contains the received bytes; null if
   * the socket became writable or the connection was just opened.
   */
  #guarded(socket: ClientSocket, chunk: Uint8Array | null): void {
    const client = socket.data;
    if (client === null) return;
    const { connection } = client;
    if (this.#rejected.has(client)) {
      if (chunk === null) connection.flush();
      else if (this.#rejected.delete(client)) connection.hangUp();
      return;
    }
    try {
      if (chunk === null) connection.drained();
      else connection.receive(chunk);
    } catch (error) {
      this.#fault(client.connection, error);
    }
    if (client.connection.closed) this.#leave(client);
  }

  /** Closes a connection that caused an internal error. Other connections are not affected. */
  #fault(connection: Connection, error: unknown): void {
    this.stats.faults++;
    const text = `engine request failed on connection ${connection.id}: ${messageOf(error)}`;
    const stack = error instanceof Error ? error.stack : undefined;
    this.#options.log("error", text, stack === undefined ? {} : { stack });
    connection.dismiss(FrameStatus.internal, "the agent failed on this frame; see its log");
  }

  #gone(socket: ClientSocket): void {
    this.#openings.gone(socket);
    const client = socket.data;
    if (client === null) return;
    client.connection.ended();
    this.#rejected.delete(client);
    this.#leave(client);
  }

  /**
   * Handles the end of a connection. Its slots stay reserved until the client's process exits,
   * unless it already has.
   */
  #leave(client: Client): void {
    if (!this.#clients.delete(client)) return;
    client.share.ended();
    this.#endings++;
    const { greeted } = client.connection;
    const holder = greeted?.holder;
    holder?.abandon();
    if (greeted) {
      this.#gpu.close(greeted.gpu);
      greeted.warm.close();
    }
    if (client.dead || holder === undefined || holder.held === 0) {
      this.#releaseAfterExit(client);
      return;
    }
    this.#orphans.add(client);
    this.stats.quarantines++;
  }

  #died(client: Client): void {
    client.dead = true;
    client.watch = null;
    client.connection.close();
    this.#leave(client);
    this.#releaseAfterExit(client);
  }

  #releaseAfterExit(client: Client): void {
    this.#orphans.delete(client);
    client.watch?.[Symbol.dispose]();
    client.watch = null;
    client.connection.greeted?.holder.buried();
    client.share[Symbol.dispose]();
  }

  /**
   * Returns true after a pause of the agent itself (SIGSTOP, a suspended machine), and restarts the
   * timeouts of all engines: frames sent during the pause are still unread in the sockets.
   */
  #forgivePause(now: number): boolean {
    const pausedMs = now - this.#checkedMs;
    this.#checkedMs = now;
    if (pausedMs < this.#pauseMs) return false;
    for (const { connection } of this.#clients) {
      connection.lastFrameMs += pausedMs;
      if (connection.stalledSinceMs !== null) connection.stalledSinceMs += pausedMs;
    }
    return true;
  }

  #checkTimes(): void {
    if (this.#endings >= ENDINGS_A_SWEEP) {
      this.#endings = 0;
      Bun.gc(false);
    }
    const { clock, health } = this.#options;
    if (health !== undefined) this.#shares.report(health);
    const [limits, now] = [this.#limits, clock.monotonicMs()];
    if (this.#forgivePause(now)) return;
    for (const client of this.#clients) {
      const { connection } = client;
      const holder = connection.greeted?.holder;
      const held = holder?.held ?? 0;
      if (this.#draining) holder?.endLookups();
      // A client that waits for the agent's reply does not count as silent.
      if (connection.working > 0) connection.lastFrameMs = now;
      if (connection.stalledSinceMs !== null) {
        if (now - connection.stalledSinceMs > limits.unreadMs) this.#cut(client, "unread");
      } else if (holder === undefined && !this.#draining) {
        if (now - client.openedMs > HELLO_MS) this.#cut(client, "silent");
      } else if (held > 0 && now - connection.lastFrameMs > limits.leaseMs) {
        this.#cut(client, "overstayed");
      } else if (this.#draining && held === 0 && connection.working === 0) {
        connection.dismiss(FrameStatus.draining, "the agent is stopping: connect again later");
        this.#leave(client);
      }
    }
    for (const client of this.#rejected) {
      if (now - client.openedMs > HELLO_MS) client.connection.hangUp();
    }
    // A commit that was in progress when its connection ended may have released the last slots.
    for (const orphan of this.#orphans) {
      if (orphan.connection.greeted?.holder.held === 0) this.#releaseAfterExit(orphan);
    }
  }

  #cut(client: Client, why: "unread" | "silent" | "overstayed"): void {
    const { connection, pid } = client;
    const [{ log }, { leaseMs }] = [this.#options, this.#limits];
    const holder = connection.greeted?.holder;
    this.stats.cutOff++;
    const name = connection.greeted?.name ?? "";
    log("warn", `engine disconnected by the agent: ${why}`, { pid, name, held: holder?.held ?? 0 });
    if (why === "unread") connection.close();
    else if (why === "silent") {
      connection.dismiss(FrameStatus.notGreeted, `no HELLO within ${HELLO_MS} ms`);
    } else {
      const text = `no frame for ${leaseMs} ms while holding slots: connect again`;
      connection.dismiss(FrameStatus.overstayed, text);
    }
    this.#leave(client);
  }

  /**
   * Stops granting slots. Waits until no slot is held, but at most until the deadline or until
   * `forceStop` is aborted.
   */
  async drain(deadlineMs: number, forceStop: AbortSignal): Promise<void> {
    this.#draining = true;
    this.#warm.stop();
    this.#listener?.stop(false);
    const { clock } = this.#options;
    const end = clock.monotonicMs() + deadlineMs;
    while (this.#clients.size > 0 && clock.monotonicMs() < end && !forceStop.aborted) {
      this.#checkTimes();
      await sleep(clock, 5);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#timer?.[Symbol.dispose]();
    for (const client of [...this.#clients]) {
      client.connection.dismiss(FrameStatus.draining, "the agent has stopped");
      this.#leave(client);
    }
    for (const client of [...this.#orphans]) this.#releaseAfterExit(client);
    for (const { connection } of [...this.#rejected]) connection.hangUp();
    // Stopping the listener removes the socket file. If a drain already stopped it, another agent
    // may listen on that path by now.
    this.#listener?.stop(true);
    this.#listener = null;
  }
}

interface Opening {
  pause(): void;
  resume(): void;
  terminate(): void;
}

/**
 * Accepted connections that wait to be opened. All new connections share one source of event-loop
 * turns, so that a client that reconnects continuously delays only other new connections.
 */
class Openings<S extends Opening> {
  readonly #waiting = new Set<S>();
  readonly #source = loopTurns.source();

  /** Calls `open` in a later time slice, unless the connection has ended by then. */
  came(socket: S, open: () => void): void {
    this.#waiting.add(socket);
    const opened = this.#source.call(() => {
      if (!this.#waiting.delete(socket)) return;
      socket.resume();
      open();
    });
    if (opened === null) socket.terminate();
    // The socket is not read until its connection is open.
    else if (this.#waiting.has(socket)) socket.pause();
  }

  gone(socket: S): void {
    this.#waiting.delete(socket);
  }
}
