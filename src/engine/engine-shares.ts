import { fstatSync, readFileSync, statfsSync } from "node:fs";
import { loopTurns, type TurnSource } from "../core/index.ts";
import type { Health } from "../observability/index.ts";
import type { SlotShare } from "../store/index.ts";

/**
 * Fraction of RAM, and of the connections, that one engine alone cannot use, so that another engine
 * can start.
 */
const MARGIN = 1 / 8;
/** An engine that holds less than this fraction of RAM may also use the margin. */
const SMALL_SHARE = MARGIN / 2;
/** Shares are not enforced if RAM has room for fewer blocks than this. */
const BLOCKS_MIN = 16;
/** An engine that holds this fraction of its share, or more, is reported in the agent's health. */
const REPORTED_SHARE = 0.8;
/** The report ends this many ms after the engine last held that much or was refused a slot. */
const REPORTED_MS = 30_000;
/** `PIDFS_MAGIC` of Linux 6.9. Since then each process's pidfd has its own inode. */
const PIDFS_MAGIC = 0x50494446;

export interface ShareLimits {
  readonly connectionsMax: number;
  /** Maximum connections of one process. */
  readonly processConnectionsMax: number;
  /** Maximum fraction of RAM whose slots one engine may hold while other engines are connected. */
  readonly heldShare: number;
}

/** An operating-system process that opens a connection. */
export interface EngineProcess {
  /** Process id. 0 if the process is in a PID namespace that this agent cannot see. */
  readonly pid: number;
  readonly uid: number;
  readonly pidFd: number;
}

/** One engine: a process, or several processes that joined with the same engine id. */
class OwnerGroup {
  heldBytes = 0;
  heldSlots = 0;
  wasRefused = false;
  readonly processes = new Set<ProcessEntry>();
}

/** One process with all its connections, including ended ones whose slots are not free yet. */
class ProcessEntry {
  readonly key: string | null;
  readonly pid: number;
  readonly uid: number;
  readonly command: string;
  connections = 0;
  /** Connections of the process, including ended ones whose slots are not free yet. */
  users = 0;
  group = new OwnerGroup();
  /**
   * All connections of the process share one source of event-loop turns, so that opening more
   * connections gains no time.
   */
  readonly source = loopTurns.source();

  constructor(key: string | null, { pid, uid }: EngineProcess) {
    [this.key, this.pid, this.uid, this.command] = [key, pid, uid, commandOf(pid)];
    this.group.processes.add(this);
  }
}

/**
 * Counts one connection, and the slots it holds, against the limits of its engine. Dispose it once
 * its slots are free.
 */
export interface ConnectionShare extends SlotShare, Disposable {
  /** Reports that the connection has ended. Its slots may not be free yet. */
  ended(): void;
  /** Reports that the connection joined the engine with this id. */
  joined(engine: string): void;
  /** The process's source of event-loop turns; its requests are handled in slices of it. */
  readonly source: TurnSource;
  /** Why the connection is over a limit. Null if it is within all limits. */
  readonly refusal: string | null;
}

/**
 * Limits on connections and RAM per engine, so that no engine starves the others.
 *
 * While other engines are connected, an engine may hold slots of at most `heldShare` of RAM. A
 * single engine may hold all of RAM except a margin, so that another one can start. The limits
 * count bytes, not slots.
 */
export class EngineShares {
  readonly #ramBytes: () => number;
  #limits: ShareLimits;
  readonly #processes = new Set<ProcessEntry>();
  readonly #byKey = new Map<string, ProcessEntry>();
  readonly #groups = new Set<OwnerGroup>();
  readonly #engines = new Map<string, OwnerGroup>();
  #connections = 0;
  #heldBytes = 0;

  /** `ramBytes` returns the bytes of RAM that can currently hold blocks. */
  constructor(limits: ShareLimits, ramBytes: () => number) {
    [this.#limits, this.#ramBytes] = [limits, ramBytes];
  }

  setLimits(limits: ShareLimits): void {
    this.#limits = limits;
  }

  /**
   * Counts a new connection of the process, even if it is over a limit; `refusal` then says why.
   */
  open(peer: EngineProcess): ConnectionShare {
    const key = keyOf(peer);
    const known = key === null ? undefined : this.#byKey.get(key);
    const process = known ?? this.#enter(new ProcessEntry(key, peer));
    const refusal = this.#whyNot(process);
    process.connections++;
    process.users++;
    this.#connections++;
    const end = once(() => {
      process.connections--;
      this.#connections--;
    });
    const leave = once(() => this.#leave(process));
    return {
      refusal,
      source: process.source,
      mayTake: (bytes) => this.#mayTake(process.group, bytes),
      took: (bytes) => this.#count(process.group, bytes, 1),
      gave: (bytes) => this.#count(process.group, -bytes, -1),
      joined: (engine) => this.#join(process, engine),
      ended: end,
      [Symbol.dispose]() {
        end();
        leave();
      },
    };
  }

  /** Raises a health report if one engine holds nearly all that it may hold. */
  report(health: Pick<Health, "raise">): void {
    for (const group of this.#groups) {
      const limit = this.#shareOf() * this.#ramBytes();
      const isMuch = group.heldBytes >= REPORTED_SHARE * limit && group.heldSlots >= BLOCKS_MIN;
      if (group.wasRefused || isMuch) {
        health.raise("ENGINE_HOLDS_ALL", this.#textOf(group), { forMs: REPORTED_MS });
      }
      group.wasRefused = false;
    }
  }

  #enter(process: ProcessEntry): ProcessEntry {
    this.#processes.add(process);
    this.#groups.add(process.group);
    if (process.key !== null) this.#byKey.set(process.key, process);
    return process;
  }

  #leave(process: ProcessEntry): void {
    if (--process.users > 0) return;
    const { key, group } = process;
    this.#processes.delete(process);
    if (key !== null) this.#byKey.delete(key);
    group.processes.delete(process);
    if (group.processes.size > 0) return;
    this.#groups.delete(group);
    for (const [id, known] of this.#engines) if (known === group) this.#engines.delete(id);
  }

  #whyNot(process: ProcessEntry): string | null {
    const { connectionsMax, processConnectionsMax } = this.#limits;
    const kept = Math.floor(connectionsMax * MARGIN);
    if (process.connections >= processConnectionsMax && process.key !== null) {
      process.group.wasRefused = true;
      return (
        `process ${process.pid} already has ${process.connections} connections: close some, or ` +
        "raise engine.clients_max, an eighth of which one process may use"
      );
    }
    if (this.#connections >= connectionsMax) {
      return `this agent accepts ${connectionsMax} engines: raise engine.clients_max`;
    }
    if (process.connections === 0 || this.#connections < connectionsMax - kept) return null;
    return (
      `the last ${kept} of ${connectionsMax} connections are reserved for processes without one: ` +
      "raise engine.clients_max"
    );
  }

  /** Returns the maximum fraction of RAM that one engine may hold now. */
  #shareOf(): number {
    return this.#groups.size > 1 ? this.#limits.heldShare : 1 - MARGIN;
  }

  #mayTake(group: OwnerGroup, bytes: number): boolean {
    const ramBytes = this.#ramBytes();
    if (this.#limits.heldShare >= 1 || bytes * BLOCKS_MIN > ramBytes) return true;
    const own = group.heldBytes + bytes;
    const isFree = this.#heldBytes + bytes <= (1 - MARGIN) * ramBytes;
    const mayTake = own <= this.#shareOf() * ramBytes && (isFree || own <= SMALL_SHARE * ramBytes);
    if (!mayTake) group.wasRefused = true;
    return mayTake;
  }

  #count(group: OwnerGroup, bytes: number, slots: number): void {
    group.heldBytes += bytes;
    group.heldSlots += slots;
    this.#heldBytes += bytes;
  }

  /**
   * Moves a process to the engine with this id. All processes of an engine have one common share.
   */
  #join(process: ProcessEntry, engine: string): void {
    const own = process.group;
    const group = this.#engines.get(engine);
    if (group === undefined) {
      this.#engines.set(engine, own);
      return;
    }
    if (group === own) return;
    for (const one of own.processes) {
      one.group = group;
      group.processes.add(one);
    }
    group.heldBytes += own.heldBytes;
    group.heldSlots += own.heldSlots;
    this.#groups.delete(own);
    for (const [id, known] of this.#engines) if (known === own) this.#engines.set(id, group);
  }

  #textOf({ heldBytes, heldSlots, processes }: OwnerGroup): string {
    const [first] = processes;
    const connections = [...processes].reduce((sum, process) => sum + process.connections, 0);
    const percent = Math.round((100 * heldBytes) / Math.max(1, this.#ramBytes()));
    const more = processes.size > 1 ? ` and ${processes.size - 1} more of its engine` : "";
    const { pid, uid, command } = first!;
    return (
      `process ${pid} (uid ${uid}, ${command})${more} holds ${heldSlots} slots, ${percent} % of ` +
      `RAM, on ${connections} connections; the share of one engine is ` +
      `${Math.round(100 * this.#shareOf())} %`
    );
  }
}

function once(run: () => void): () => void {
  let isDone = false;
  return () => {
    if (!isDone) run();
    isDone = true;
  };
}

/** Returns an identifier that no other living process has. Null if this kernel offers none. */
function keyOf({ pid, pidFd }: EngineProcess): string | null {
  const inode = inodeOf(pidFd);
  if (inode !== null) return `inode ${inode}`;
  return pid > 0 ? `pid ${pid}` : null;
}

function inodeOf(pidFd: number): bigint | null {
  try {
    if (statfsSync(`/proc/self/fd/${pidFd}`).type !== PIDFS_MAGIC) return null;
    return fstatSync(pidFd, { bigint: true }).ino;
  } catch {
    return null;
  }
}

/** Returns the kernel's short name of a process. */
function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8").trim();
  } catch {
    return "unknown command";
  }
}
