import { assert, type NamespaceIndex, type WorkerId } from "../../core/index.ts";
import { type FetchLimits, PULL_PRIORITIES, type PullPriority } from "./fetch-options.ts";

/** Maximum number of blocks that wait for admission. Further ones are refused. */
const WAITING_MAX = 65_536;

export interface Candidate {
  readonly priority: PullPriority;
  readonly namespace: NamespaceIndex;
  readonly peer: WorkerId;
  /** Maximum payload bytes that the peer may send for this block. */
  readonly bytes: number;
  /**
   * Called when the block is admitted, with its share of the bytes in flight. Must not call methods
   * of `Admission`.
   */
  admitted(grant: Grant): void;
  /** Called instead of `admitted` if the limits are lowered below this block's size. */
  refused(): void;
}

/** A block's share of the bytes in flight. `release` must be called exactly once. */
export interface Grant {
  release(): void;
}

/** A block's entry in the admission queue. */
export interface Ticket {
  /** Removes the block from the queue. Has no effect once the block was admitted. */
  leave(): void;
  /** Moves the block forward because a caller with a higher priority wants it, too. */
  raisePriority(priority: PullPriority): void;
}

interface Entry {
  readonly candidate: Candidate;
  readonly order: number;
  queue: Queue;
}

interface Queue {
  readonly rank: number;
  readonly namespace: NamespaceIndex;
  readonly peer: WorkerId;
  readonly entries: Set<Entry>;
}

type Bounds = Pick<FetchLimits, "bytesMax" | "peerBytesMax" | "namespaceBytesMax">;

/**
 * Admits blocks to be fetched, so that the bytes in flight stay below three limits: in total, from
 * each peer, and for each namespace. Admits the most urgent priority first, then the namespace with
 * the fewest bytes in flight, then the oldest entry. An entry that does not fit blocks all later
 * entries that need the same limit, so that small blocks cannot starve a large one.
 */
export class Admission {
  #bounds: Bounds;
  readonly #queues = new Map<string, Queue>();
  readonly #ofPeer = new Map<WorkerId, number>();
  readonly #ofNamespace = new Map<NamespaceIndex, number>();
  #inFlight = 0;
  #waiting = 0;
  #orders = 0;
  #letting = false;

  constructor(bounds: Bounds) {
    this.#bounds = bounds;
  }

  get inFlightBytes(): number {
    return this.#inFlight;
  }

  get waiting(): number {
    return this.#waiting;
  }

  bytesOf(peer: WorkerId): number {
    return this.#ofPeer.get(peer) ?? 0;
  }

  configure(bounds: Bounds): void {
    this.#bounds = bounds;
    const waiting = [...this.#queues.values()].flatMap((queue) => [...queue.entries]);
    for (const entry of waiting) {
      if (entry.candidate.bytes <= this.longest || !this.#take(entry)) continue;
      entry.candidate.refused();
    }
    this.#letIn();
  }

  /** Size in bytes of the largest block that the limits allow. */
  get longest(): number {
    const { bytesMax, peerBytesMax, namespaceBytesMax } = this.#bounds;
    return Math.min(bytesMax, peerBytesMax, namespaceBytesMax);
  }

  /**
   * Adds a block to the queue. Returns null if the queue is full or the block exceeds a limit. May
   * call `admitted` before it returns.
   */
  enter(candidate: Candidate): Ticket | null {
    if (this.#waiting >= WAITING_MAX || candidate.bytes > this.longest) return null;
    const entry: Entry = {
      candidate,
      order: this.#orders++,
      queue: this.#queue(candidate, PULL_PRIORITIES.indexOf(candidate.priority)),
    };
    entry.queue.entries.add(entry);
    this.#waiting++;
    this.#letIn();
    return {
      leave: () => {
        if (this.#take(entry)) this.#letIn();
      },
      raisePriority: (priority) => this.#raisePriority(entry, PULL_PRIORITIES.indexOf(priority)),
    };
  }

  #raisePriority(entry: Entry, rank: number): void {
    if (rank >= entry.queue.rank || !this.#take(entry)) return;
    entry.queue = this.#queue(entry.candidate, rank);
    entry.queue.entries.add(entry);
    this.#waiting++;
    this.#letIn();
  }

  #queue({ namespace, peer }: Candidate, rank: number): Queue {
    const name = `${rank} ${namespace} ${peer}`;
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      queue = { rank, namespace, peer, entries: new Set() };
      this.#queues.set(name, queue);
    }
    return queue;
  }

  #take(entry: Entry): boolean {
    const { queue } = entry;
    if (!queue.entries.delete(entry)) return false;
    this.#waiting--;
    if (queue.entries.size === 0)
      this.#queues.delete(`${queue.rank} ${queue.namespace} ${queue.peer}`);
    return true;
  }

  #letIn(): void {
    if (this.#letting) return;
    this.#letting = true;
    for (let entry = this.#next(); entry !== null; entry = this.#next()) {
      this.#take(entry);
      entry.candidate.admitted(this.#grant(entry.candidate));
    }
    this.#letting = false;
  }

  #next(): Entry | null {
    const full = new Set<WorkerId | NamespaceIndex>();
    const { bytesMax, peerBytesMax, namespaceBytesMax } = this.#bounds;
    for (;;) {
      const entry = this.#first(full);
      if (entry === null) return null;
      const { bytes, peer, namespace } = entry.candidate;
      if (this.#inFlight + bytes > bytesMax) return null;
      const peerFull = this.bytesOf(peer) + bytes > peerBytesMax;
      const namespaceFull = (this.#ofNamespace.get(namespace) ?? 0) + bytes > namespaceBytesMax;
      if (!peerFull && !namespaceFull) return entry;
      if (peerFull) full.add(peer);
      if (namespaceFull) full.add(namespace);
    }
  }

  /** Returns the first entry whose peer and namespace are not in `full`. */
  #first(full: ReadonlySet<WorkerId | NamespaceIndex>): Entry | null {
    let [best, bestBytes]: [Entry | null, number] = [null, 0];
    for (const queue of this.#queues.values()) {
      if (full.has(queue.peer) || full.has(queue.namespace)) continue;
      const [entry] = queue.entries;
      const bytes = this.#ofNamespace.get(queue.namespace) ?? 0;
      const order =
        best === null
          ? -1
          : queue.rank - best.queue.rank || bytes - bestBytes || entry!.order - best.order;
      if (order < 0) [best, bestBytes] = [entry!, bytes];
    }
    return best;
  }

  #grant({ bytes, peer, namespace }: Candidate): Grant {
    this.#move(bytes, peer, namespace);
    let released = false;
    return {
      release: () => {
        assert(!released, "a grant is released once");
        released = true;
        this.#move(-bytes, peer, namespace);
        this.#letIn();
      },
    };
  }

  #move(bytes: number, peer: WorkerId, namespace: NamespaceIndex): void {
    this.#inFlight += bytes;
    add(this.#ofPeer, peer, bytes);
    add(this.#ofNamespace, namespace, bytes);
  }
}

function add<Key>(map: Map<Key, number>, key: Key, by: number): void {
  const sum = (map.get(key) ?? 0) + by;
  if (sum === 0) map.delete(key);
  else map.set(key, sum);
}
