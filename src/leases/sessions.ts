import { type BlockTable, Tier } from "../blocks/index.ts";
import { type NamespaceIndex, NO_NODE, type NodeId } from "../core/index.ts";

/** Conversations known at the same time; beyond it a new one is refused. */
const SESSIONS_MAX = 65_536;

export interface SessionState {
  /** Blocks in RAM on the path from the root to the session's last block, and their bytes. */
  readonly blocks: number;
  readonly bytes: number;
}

export type SessionOutcome = "ok" | "missing" | "full";

/**
 * Conversations: each a pointer to its deepest block and one lock on it, nothing more. Blocks are
 * found through the tree alone; after release they age one by one like any others.
 */
export class Sessions {
  readonly #table: BlockTable;
  readonly #last = new Map<string, NodeId>();

  constructor(table: BlockTable) {
    this.#table = table;
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
    this.#last.set(name, node);
    if (old !== undefined) this.#table.unlock(old);
    return "ok";
  }

  release(namespace: NamespaceIndex, session: bigint): SessionOutcome {
    const name = sessionName(namespace, session);
    const node = this.#last.get(name);
    if (node === undefined) return "missing";
    this.#last.delete(name);
    this.#table.unlock(node);
    return "ok";
  }

  /** Null where the session is not known. Walks the tree: takes as long as the session is deep. */
  state(namespace: NamespaceIndex, session: bigint): SessionState | null {
    const last = this.#last.get(sessionName(namespace, session));
    if (last === undefined) return null;
    let blocks = 0;
    let bytes = 0;
    for (let node = last; node !== NO_NODE; node = this.#table.parentOf(node)) {
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
