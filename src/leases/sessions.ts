import { type BlockTable, Tier } from "../blocks/index.ts";
import { type Clock, type NamespaceIndex, NO_NODE, type NodeId } from "../core/index.ts";

/** Conversations known at the same time; beyond it a new one is refused. */
const SESSIONS_MAX = 65_536;
/** A session that nobody committed to for so long is over: its engine forgot it, or died. */
const IDLE_MS = 3_600_000;

export interface SessionState {
  /** Blocks in RAM on the path from the root to the session's last block, and their bytes. */
  readonly blocks: number;
  readonly bytes: number;
}

export type SessionOutcome = "ok" | "missing" | "full";

interface Session {
  readonly node: NodeId;
  readonly committedMs: number;
}

/**
 * Conversations: each a pointer to its deepest block and one lock on it, nothing more. Blocks are
 * found through the tree alone; after release they age one by one like any others. A session ends
 * by release, an hour after its last commit, or when room is needed and nothing else can give it.
 */
export class Sessions {
  readonly #table: BlockTable;
  /** In the order of their last commits. */
  readonly #last = new Map<string, Session>();
  readonly #clock: Clock;

  constructor(table: BlockTable, clock: Clock) {
    this.#table = table;
    this.#clock = clock;
  }

  get size(): number {
    return this.#last.size;
  }

  /** The session now ends in `node`. The new lock is taken before the old one goes. */
  commit(namespace: NamespaceIndex, session: bigint, node: NodeId): SessionOutcome {
    const name = sessionName(namespace, session);
    const old = this.#last.get(name);
    if (old === undefined && this.#last.size >= SESSIONS_MAX) return "full";
    if (!this.#table.lock(node)) return "full";
    this.#last.delete(name);
    this.#last.set(name, { node, committedMs: this.#clock.monotonicMs() });
    if (old !== undefined) this.#table.unlock(old.node);
    return "ok";
  }

  release(namespace: NamespaceIndex, session: bigint): SessionOutcome {
    const name = sessionName(namespace, session);
    const last = this.#last.get(name);
    if (last === undefined) return "missing";
    this.#end(name, last);
    return "ok";
  }

  /** Ends the session that was committed to longest ago; false where there is none. */
  endOldest(): boolean {
    const oldest = this.#last.entries().next();
    if (oldest.done) return false;
    this.#end(...oldest.value);
    return true;
  }

  /** Ends what is idle for an hour. */
  endIdle(): void {
    const before = this.#clock.monotonicMs() - IDLE_MS;
    for (const [name, session] of this.#last) {
      if (session.committedMs > before) return;
      this.#end(name, session);
    }
  }

  #end(name: string, { node }: Session): void {
    this.#last.delete(name);
    this.#table.unlock(node);
  }

  /** Null where the session is not known. Walks the tree: takes as long as the session is deep. */
  state(namespace: NamespaceIndex, session: bigint): SessionState | null {
    const last = this.#last.get(sessionName(namespace, session));
    if (last === undefined) return null;
    let blocks = 0;
    let bytes = 0;
    for (let node = last.node; node !== NO_NODE; node = this.#table.parentOf(node)) {
      if (!this.#table.isResident(node, Tier.ram)) continue;
      blocks++;
      bytes += this.#table.bytesOf(node);
    }
    return { blocks, bytes };
  }
}

function sessionName(namespace: NamespaceIndex, session: bigint): string {
  return `${namespace}/${session}`;
}
