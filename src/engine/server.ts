import { chmodSync, chownSync } from "node:fs";
import type { Socket, UnixSocketListener } from "bun";
import { loopTurns, messageOf, sleep } from "../core/index.ts";
import type { GpuSink } from "../store/index.ts";
import { Connection, type FrameHandler } from "./connection.ts";
import { type ConnectionShare, EngineShares } from "./engine-shares.ts";
import { GpuPlane } from "./gpu-copies.ts";
import { WarmDesk } from "./gpu-warming.ts";
import { createFrameHandler } from "./hello-handler.ts";
import { FrameStatus } from "./protocol/index.ts";
import {
  type EngineLimits,
  type EngineServerOptions,
  type EngineStats,
  emptyEngineStats,
} from "./server-options.ts";
import { peerAllowed, peerOf, type SocketOwner, socketFd, takeSocketPath } from "./socket-file.ts";

const HELLO_MS = 5_000;
/** A check that comes so much later than it should was held up by a pause. */
const PAUSE_MS = 500;
/** Lost connections of one process whose slots wait for its death. */
const ZOMBIES_A_PROCESS = 16;
/** Lines that were refused and wait for the hello to end behind it; others end at once. */
const TURNED_AWAY_MAX = 64;
/**
 * Connections that end between two sweeps of memory. What they leave behind is old by then, and the
 * runtime sweeps old objects only when the heap has doubled. A sweep takes some ten milliseconds.
 */
const ENDINGS_A_SWEEP = 128;
/** How long a lack of descriptors is reported after it was last met. */
const DESCRIPTORS_MS = 30_000;

interface Client {
  readonly connection: Connection;
  readonly pid: number;
  readonly share: ConnectionShare;
  /** Ends the watch for the process's death. */
  watch: Disposable | null;
  dead: boolean;
  readonly openedMs: number;
}

/** A Bun socket carries its client. */
type ClientSocket = Socket<Client | null>;

/** The agent's end of the engine plane: one Unix socket, many engines. */
export class EngineServer implements AsyncDisposable {
  readonly stats: EngineStats = emptyEngineStats();
  readonly #options: EngineServerOptions;
  readonly #clients = new Set<Client>();
  /** Gone from the socket, but their process may still touch what they held. */
  readonly #zombies = new Set<Client>();
  readonly #turnedAway = new Set<Client>();
  readonly #openings = new Openings<ClientSocket>();
  readonly #handle: FrameHandler;
  readonly #gpu: GpuPlane;
  readonly #warm: WarmDesk;
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
    this.#gpu = new GpuPlane({
      ...{ gpus: options.gpus ?? null, native, stats: this.stats, clock, log },
    });
    this.#warm = new WarmDesk({ clock, itemsMax: limits.itemsMax });
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

  /** Changes what may change while engines are connected. */
  setLimits(limits: Partial<EngineLimits>): void {
    this.#limits = { ...this.#limits, ...limits };
    this.#shares.setLimits(this.#limits);
  }

  get connections(): number {
    return this.#clients.size;
  }

  /** Takes blocks from RAM to engines that wait for them. */
  get gpuSink(): GpuSink {
    return this.#warm;
  }

  /** Slots held by connections, and by processes or devices that may still touch theirs. */
  held(): { readonly held: number; readonly quarantined: number } {
    const sum = (clients: Set<Client>) => {
      let total = 0;
      for (const { connection } of clients) total += connection.greeted?.holder.held ?? 0;
      return total;
    };
    return { held: sum(this.#clients), quarantined: sum(this.#zombies) + this.#gpu.orphans };
  }

  /** Listens. Throws SOCKET_IN_USE where another agent answers there. */
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
        const text = "an engine was turned away: no descriptor is left to watch its process";
        this.#options.health?.raise("FD_LIMIT", text, { forMs: DESCRIPTORS_MS });
      }
      socket.terminate();
      return;
    }
    const owner: SocketOwner = { uid: process.getuid!(), gid: process.getgid!() };
    const allowed = peerAllowed(peer, owner, this.#options.socketGroup);
    if (!allowed || peer.pidFd === null) {
      this.stats.refusedPeers++;
      log("warn", "an engine was not let in", { pid: peer.pid, uid: peer.uid, gid: peer.gid });
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
      onFault: (line, error) => this.#fault(line, error),
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
    this.#turnAway(client, refusal);
  }

  #lostTooMany(pid: number): string | null {
    let count = 0;
    for (const zombie of this.#zombies) if (zombie.pid === pid) count++;
    if (count < ZOMBIES_A_PROCESS) return null;
    return "this process lost too many connections: release slots, then close";
  }

  /**
   * A connection whose process cannot be watched could not be cleaned up after: it is not taken.
   */
  #watch(client: Client, pidFd: number): void {
    const { queue, native } = this.#options;
    try {
      client.watch = queue.watch(pidFd, () => this.#died(client));
    } catch (error) {
      native.closeFd(pidFd);
      const text = `this engine's process cannot be watched: ${messageOf(error)}`;
      this.#turnAway(client, text);
    }
  }

  /**
   * Tells at once, but hangs up only behind the hello that is on its way: an engine whose line ends
   * before it has spoken sees no words, only that nobody answers.
   */
  #turnAway(client: Client, text: string): void {
    const { connection } = client;
    this.#clients.delete(client);
    client.share[Symbol.dispose]();
    this.stats.refusedPeers++;
    if (this.#turnedAway.size < TURNED_AWAY_MAX) this.#turnedAway.add(client);
    connection.tell(FrameStatus.limit, text);
    if (!this.#turnedAway.has(client)) connection.hangUp();
  }

  readonly #fds = new WeakMap<Connection, number>();

  /**
   * Writes what waits with the arena's descriptor on its first byte. Null where the socket is gone.
   */
  #sendWithFd(connection: Connection, fd: number): number | null {
    const socket = this.#fds.get(connection);
    if (socket === undefined) return null;
    const sent = this.#options.native.sendFd(socket, connection.takePending(), fd);
    return typeof sent === "number" ? sent : null;
  }

  /** `chunk`: what came; null: the socket can take more, or a connection was opened late. */
  #guarded(socket: ClientSocket, chunk: Uint8Array | null): void {
    const client = socket.data;
    if (client === null) return;
    const { connection } = client;
    if (this.#turnedAway.has(client)) {
      if (chunk === null) connection.flush();
      else if (this.#turnedAway.delete(client)) connection.hangUp();
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

  /** A bug of ours on one line must not take the others down. */
  #fault(connection: Connection, error: unknown): void {
    this.stats.faults++;
    const text = `engine ${connection.id}: ${messageOf(error)}`;
    const stack = error instanceof Error ? error.stack : undefined;
    this.#options.log("error", text, stack === undefined ? {} : { stack });
    connection.dismiss(FrameStatus.internal, "the agent failed on this frame; see its log");
  }

  #gone(socket: ClientSocket): void {
    this.#openings.gone(socket);
    const client = socket.data;
    if (client === null) return;
    client.connection.ended();
    this.#turnedAway.delete(client);
    this.#leave(client);
  }

  /** The line is over. What was held waits for the process's end, unless that has come already. */
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
      this.#bury(client);
      return;
    }
    this.#zombies.add(client);
    this.stats.quarantines++;
  }

  #died(client: Client): void {
    client.dead = true;
    client.watch = null;
    client.connection.close();
    this.#leave(client);
    this.#bury(client);
  }

  #bury(client: Client): void {
    this.#zombies.delete(client);
    client.watch?.[Symbol.dispose]();
    client.watch = null;
    client.connection.greeted?.holder.buried();
    client.share[Symbol.dispose]();
  }

  /**
   * After a pause of the agent itself (SIGSTOP, a suspended machine) nobody is late: what engines
   * sent meanwhile is still unread in their sockets.
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
      Bun.gc(true);
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
      // Who waits for an answer of ours is not silent.
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
    for (const client of this.#turnedAway) {
      if (now - client.openedMs > HELLO_MS) client.connection.hangUp();
    }
    // A commit that was at work when its line ended may have been all that was held.
    for (const zombie of this.#zombies) {
      if (zombie.connection.greeted?.holder.held === 0) this.#bury(zombie);
    }
  }

  #cut(client: Client, why: "unread" | "silent" | "overstayed"): void {
    const { connection, pid } = client;
    const [{ log }, { leaseMs }] = [this.#options, this.#limits];
    const holder = connection.greeted?.holder;
    this.stats.cutOff++;
    const name = connection.greeted?.name ?? "";
    log("warn", `an engine was cut off: ${why}`, { pid, name, held: holder?.held ?? 0 });
    if (why === "unread") connection.close();
    else if (why === "silent") {
      connection.dismiss(FrameStatus.notGreeted, `no hello came within ${HELLO_MS} ms`);
    } else {
      const text = `slots were held and nothing was sent for ${leaseMs} ms: connect again`;
      connection.dismiss(FrameStatus.overstayed, text);
    }
    this.#leave(client);
  }

  /** Hands out nothing new and waits until nobody holds anything, the deadline, or `hurry`. */
  async drain(deadlineMs: number, hurry: AbortSignal): Promise<void> {
    this.#draining = true;
    this.#warm.stop();
    this.#listener?.stop(false);
    const { clock } = this.#options;
    const end = clock.monotonicMs() + deadlineMs;
    while (this.#clients.size > 0 && clock.monotonicMs() < end && !hurry.aborted) {
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
    for (const client of [...this.#zombies]) this.#bury(client);
    for (const { connection } of [...this.#turnedAway]) connection.hangUp();
    // Takes the file away, unless a drain did: by now another agent may listen there.
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
 * Connections that were accepted and wait for a slice of the event loop, which all new ones share,
 * to be opened in: a client that connects again and again delays new connections alone.
 */
class Openings<S extends Opening> {
  readonly #waiting = new Set<S>();
  readonly #source = loopTurns.source();

  /** Calls `open` in a slice unless the connection is gone by then. */
  came(socket: S, open: () => void): void {
    this.#waiting.add(socket);
    const opened = this.#source.call(() => {
      if (!this.#waiting.delete(socket)) return;
      socket.resume();
      open();
    });
    if (opened === null) socket.terminate();
    // Nothing is read of a connection that is not open yet.
    else if (this.#waiting.has(socket)) socket.pause();
  }

  gone(socket: S): void {
    this.#waiting.delete(socket);
  }
}
