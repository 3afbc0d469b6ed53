import {
  type Clock,
  type HeldBy,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";

export interface TierUse {
  readonly blocks: number;
  readonly bytes: number;
}

/**
 * Which blocks of a session are resident. The blocks of a session are those on the path from the
 * root to its last block.
 */
export interface SessionState {
  /** Number of blocks on the path, resident or not. */
  readonly depth: number;
  readonly ram: TierUse;
  /** A block in RAM and on SSD counts in both. */
  readonly ssd: TierUse;
}

export interface SessionInfo {
  readonly namespace: NamespaceIndex;
  readonly session: bigint;
  /** Milliseconds since the last commit of the session. */
  readonly idleMs: number;
  readonly state: SessionState;
}

export interface ListOptions {
  /** Return only sessions of this namespace; null: of all namespaces. */
  readonly namespace: NamespaceIndex | null;
  /** Cursor: `next` of the previous page, or 0 for the first page. */
  readonly after: number;
  readonly max: number;
}

export interface SessionPage {
  readonly sessions: readonly SessionInfo[];
  /** Cursor for the next page; null if this is the last page. */
  readonly next: number | null;
}

/** Maximum number of sessions. The first commit of another session is refused. */
const SESSIONS_MAX = 65_536;
/** Default milliseconds after which a session without a commit ends. */
const IDLE_MS = 3_600_000;
/** Maximum number of blocks visited for one page of a list. Takes about a millisecond. */
const LIST_STEPS_MAX = 65_536;
/** Maximum number of sessions reported for one block. */
const HOLDERS_MAX = 64;

export type SessionOutcome = "ok" | "missing" | "full";

interface Session {
  readonly namespace: NamespaceIndex;
  readonly session: bigint;
  readonly node: NodeId;
  readonly committedMs: number;
  /**
   * Sequence number of the session's last commit among the commits of all sessions. Sessions are
   * listed in this order.
   */
  readonly turn: number;
}

/**
 * Sessions protect the blocks of conversations from eviction. A session is a pointer to the last
 * block of a conversation and one lock on that block, which protects its ancestors too. A session
 * ends when its engine releases it, after the idle time without a commit, or if a tier needs room
 * and nothing else can be evicted. Its blocks are then evicted like any others. Invariants:
 *
 * - I1 After the release of a session, matching depends on the block tree alone.
 * - I2 A commit never shortens a session: committing an ancestor of the last block leaves the last
 *   block as it was, and the new lock is taken before the old one is released.
 * - I3 Matching neither reads nor changes sessions.
 * - I4 Blocks without a session are treated as if no session existed.
 * - I5 Every lock taken for a session is released, at the latest when the session ends.
 */
export class Sessions {
  readonly #table: BlockTable;
  /** Sessions by name, in the order of their last commits. */
  readonly #last = new Map<string, Session>();
  /** Names of sessions by the node of their last block. */
  readonly #at = new Map<NodeId, Set<string>>();
  readonly #clock: Clock;
  #idleMs = IDLE_MS;
  #turns = 0;

  constructor(table: BlockTable, clock: Clock) {
    this.#table = table;
    this.#clock = clock;
  }

  get size(): number {
    return this.#last.size;
  }

  /** Sets the idle time in milliseconds, for existing sessions too. */
  setIdle(ms: number): void {
    this.#idleMs = ms;
  }

  /**
   * Makes `node` the last block of the session, unless `node` is an ancestor of its current last
   * block.
   */
  commit(namespace: NamespaceIndex, session: bigint, node: NodeId): SessionOutcome {
    const name = sessionName(namespace, session);
    const old = this.#last.get(name);
    if (old === undefined && this.#last.size >= SESSIONS_MAX) return "full";
    const deepest = old !== undefined && this.#isOnPath(node, old.node) ? old.node : node;
    if (!this.#table.lock(deepest)) return "full";
    this.#last.delete(name);
    const committedMs = this.#clock.monotonicMs();
    this.#last.set(name, { namespace, session, node: deepest, committedMs, turn: ++this.#turns });
    if (old !== undefined) this.#leave(name, old.node);
    this.#arrive(name, deepest);
    if (old !== undefined) this.#table.unlock(old.node);
    return "ok";
  }

  #arrive(name: string, node: NodeId): void {
    const names = this.#at.get(node);
    if (names === undefined) this.#at.set(node, new Set([name]));
    else names.add(name);
  }

  #leave(name: string, node: NodeId): void {
    const names = this.#at.get(node);
    if (names?.delete(name) && names.size === 0) this.#at.delete(node);
  }

  /** Returns whether `node` is `end` or one of its ancestors. */
  #isOnPath(node: NodeId, end: NodeId): boolean {
    for (let at = end; at !== NO_NODE; at = this.#table.parentOf(at)) if (at === node) return true;
    return false;
  }

  release(namespace: NamespaceIndex, session: bigint): SessionOutcome {
    const name = sessionName(namespace, session);
    const last = this.#last.get(name);
    if (last === undefined) return "missing";
    this.#end(name, last);
    return "ok";
  }

  /** Ends the session whose last commit is the oldest. Returns false if no session exists. */
  endOldest(): boolean {
    const oldest = this.#last.entries().next();
    if (oldest.done) return false;
    this.#end(...oldest.value);
    return true;
  }

  /**
   * Ends the sessions whose last block is one of these nodes. Returns the number of sessions ended.
   */
  endAt(nodes: ReadonlySet<NodeId>): number {
    let ended = 0;
    for (const node of nodes) {
      for (const name of [...(this.#at.get(node) ?? [])]) {
        this.#end(name, this.#last.get(name)!);
        ended++;
      }
    }
    return ended;
  }

  /** Returns the sessions whose last block is this node, at most 64. */
  holdersOf(node: NodeId): HeldBy[] {
    const holders: HeldBy[] = [];
    for (const name of this.#at.get(node) ?? []) {
      if (holders.length === HOLDERS_MAX) break;
      holders.push({ kind: "session", name: `${this.#last.get(name)!.session}` });
    }
    return holders;
  }

  /** Ends the sessions that had no commit during the idle time. */
  endIdle(): void {
    const before = this.#clock.monotonicMs() - this.#idleMs;
    for (const [name, session] of this.#last) {
      if (session.committedMs > before) return;
      this.#end(name, session);
    }
  }

  #end(name: string, { node }: Session): void {
    this.#last.delete(name);
    this.#leave(name, node);
    this.#table.unlock(node);
  }

  /**
   * Returns the residency of the session's blocks, or null if the session is unknown. Takes time
   * linear in the number of blocks.
   */
  state(namespace: NamespaceIndex, session: bigint): SessionState | null {
    const last = this.#last.get(sessionName(namespace, session));
    return last === undefined ? null : this.#infoOf(last).state;
  }

  /** Returns the sessions with this number, in any namespace. */
  find(session: bigint): SessionInfo[] {
    const found = [...this.#last.values()].filter((last) => last.session === session);
    return found.map((last) => this.#infoOf(last));
  }

  /**
   * Returns a page of sessions, those with the oldest last commits first. It has at most `max`
   * sessions, fewer if these have many blocks. A session that gets a commit between two pages
   * appears again at the end; no session is skipped.
   */
  list({ namespace, after, max }: ListOptions): SessionPage {
    const sessions: SessionInfo[] = [];
    let next = after;
    let steps = 0;
    for (const last of this.#last.values()) {
      if (last.turn <= after || (namespace !== null && last.namespace !== namespace)) continue;
      if (sessions.length >= max || steps >= LIST_STEPS_MAX) return { sessions, next };
      const info = this.#infoOf(last);
      sessions.push(info);
      next = last.turn;
      steps += info.state.depth;
    }
    return { sessions, next: null };
  }

  #infoOf({ namespace, session, node: end, committedMs }: Session): SessionInfo {
    const table = this.#table;
    const ram = { blocks: 0, bytes: 0 };
    const ssd = { blocks: 0, bytes: 0 };
    let depth = 0;
    for (let node = end; node !== NO_NODE; node = table.parentOf(node)) {
      depth++;
      for (const [tier, use] of [
        [Tier.ram, ram],
        [Tier.ssd, ssd],
      ] as const) {
        if (!table.isResident(node, tier)) continue;
        use.blocks++;
        use.bytes += table.bytesOf(node);
      }
    }
    const idleMs = this.#clock.monotonicMs() - committedMs;
    return { namespace, session, idleMs, state: { depth, ram, ssd } };
  }
}

function sessionName(namespace: NamespaceIndex, session: bigint): string {
  return `${namespace}/${session}`;
}
