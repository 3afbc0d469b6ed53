import { assert, type Clock, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { RetentionLedger } from "../index/index.ts";
import { MinHeap } from "./min-heap.ts";
import { PinRecords } from "./pin-records.ts";
import { type PinGroup, PinIndex, PinnedBytes } from "./pinned-bytes.ts";
import type { PinInfo, PinKind, PinRequest } from "./pins.ts";

/** Minimum milliseconds between two checks of whether a soft pin has faded. */
const FADE_LOOK_MS = 1_000;

interface PinTableOptions {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly ledger: RetentionLedger | null;
  /** The store's clock in seconds, which also timestamps the use of blocks. */
  readonly nowSeconds: () => number;
}

/** The properties with which a pin is created. */
export type PinTerms = Pick<PinRequest, "kind" | "owner" | "name" | "priority" | "idleMs"> & {
  readonly purges: boolean;
  readonly deadlineBootMs: number | null;
  /** Unix time of creation, in milliseconds; null: now. */
  readonly createdWallMs: number | null;
};

interface Totals {
  holds: number;
  blocks: number;
  bytes: number;
}

/**
 * The active pins, and everything that changes together with a pin: the pin counts of the block
 * table, the indexes, totals, due times and ledger records.
 */
export class PinTable {
  readonly #parts: PinTableOptions;
  readonly table: BlockTable;
  readonly index: PinIndex;
  readonly pinnedBytes: PinnedBytes;
  readonly records: PinRecords;
  readonly due = new DueTimes();
  readonly leases = new Map<string, Pin>();
  readonly totals: Readonly<Record<PinKind, Totals>> = {
    pin: { holds: 0, blocks: 0, bytes: 0 },
    retain: { holds: 0, blocks: 0, bytes: 0 },
    lease: { holds: 0, blocks: 0, bytes: 0 },
  };
  readonly #pins = new Map<number, Pin>();
  /** Pin ids, ascending. Ids of ended pins are removed when they are more than half of the list. */
  #ids: number[] = [];
  #lastId = 0;

  constructor(parts: PinTableOptions) {
    this.#parts = parts;
    this.table = parts.table;
    this.pinnedBytes = new PinnedBytes(parts.table);
    this.index = new PinIndex(this.pinnedBytes);
    this.records = new PinRecords(parts);
  }

  get size(): number {
    return this.#pins.size;
  }

  /** Sum of the block counts of all pins. A block in two pins counts twice. */
  get blocks(): number {
    const { pin, retain, lease } = this.totals;
    return pin.blocks + retain.blocks + lease.blocks;
  }

  /** Returns the active pins, and ended pins whose blocks are still being released. */
  all(): IterableIterator<Pin> {
    return this.#pins.values();
  }

  /** Yields the active pins with ids above `after`, in ascending order. */
  *after(after: number): Generator<Pin> {
    let [low, high] = [0, this.#ids.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ids[middle] > after) high = middle;
      else low = middle + 1;
    }
    for (; low < this.#ids.length; low++) {
      const pin = this.#pins.get(this.#ids[low]);
      if (pin !== undefined && !pin.ended) yield pin;
    }
  }

  get(id: number): Pin | undefined {
    return this.#pins.get(id);
  }

  /**
   * Creates a pin without blocks. `id`: the id in a ledger row; null: the next unused id. Ids are
   * never reused.
   */
  begin(terms: PinTerms, id: number | null = null): Pin {
    const { clock, nowSeconds } = this.#parts;
    const { kind, owner, name } = terms;
    const wallMs = clock.wallMs();
    const createdWallMs = terms.createdWallMs ?? wallMs;
    const agoMs = Math.max(0, wallMs - createdWallMs);
    const pin: Pin = {
      ...terms,
      id: id ?? ++this.#lastId,
      group: this.index.open(kind, owner, name),
      nodes: new PinnedBlocks(),
      bytes: 0,
      createdWallMs,
      createdMs: clock.monotonicMs() - agoMs,
      createdSeconds: Math.max(0, nowSeconds() - Math.floor(agoMs / 1_000)),
      dueBootMs: null,
      ended: false,
      isWhole: true,
    };
    this.#pins.set(pin.id, pin);
    this.#ids.push(pin.id);
    this.totals[kind].holds++;
    if (kind !== "lease") return pin;
    assert(name !== null && !this.leases.has(name), "a lease has a unique name");
    this.leases.set(name, pin);
    return pin;
  }

  /** Makes new ids greater than `through`. */
  skipIds(through: number): void {
    this.#lastId = Math.max(this.#lastId, through);
  }

  /**
   * Adds the node to the pin, in part `number` if given. Returns the part that contains it, or null
   * if the node has the maximum number of pins.
   */
  join(pin: Pin, node: NodeId, number?: number): PinPart | null {
    if (!this.table.pin(node)) return null;
    const { pinnedBytes, index } = this;
    pinnedBytes.add(node, pin.kind === "retain");
    const bytes = pinnedBytes.bytesOf(node);
    index.join(pin, node);
    const part = pin.nodes.add(node, number);
    pin.bytes += bytes;
    const totals = this.totals[pin.kind];
    totals.blocks++;
    totals.bytes += bytes;
    return part;
  }

  /**
   * Removes the node from the pin and returns the part that contained it. May remove the node from
   * the block table.
   */
  leave(pin: Pin, node: NodeId): PinPart {
    const { pinnedBytes, index } = this;
    const bytes = pinnedBytes.bytesOf(node);
    index.leave(pin, node);
    const part = pin.nodes.delete(node);
    assert(part !== null, "a block that leaves a pin was in it");
    pin.bytes -= bytes;
    const totals = this.totals[pin.kind];
    totals.blocks--;
    totals.bytes -= bytes;
    pinnedBytes.remove(node, pin.kind === "retain");
    this.table.unpin(node);
    return part;
  }

  /**
   * Puts the pin out of force. Its blocks stay pinned in the block table, and its ledger row stays.
   */
  close(pin: Pin): void {
    pin.ended = true;
    this.due.set(pin, null);
    this.unname(pin);
  }

  /** Makes the name of a lease available for another lease. */
  unname(pin: Pin): void {
    if (pin.name !== null && this.leases.get(pin.name) === pin) this.leases.delete(pin.name);
  }

  /** Removes a pin without blocks. */
  drop(pin: Pin): void {
    assert(pin.nodes.size === 0, "a dropped pin has no blocks");
    this.close(pin);
    this.index.close(pin);
    this.totals[pin.kind].holds--;
    this.#pins.delete(pin.id);
    if (this.#ids.length > this.#pins.size * 2 + 1_024)
      this.#ids = this.#ids.filter((id) => this.#pins.has(id));
  }

  /**
   * Sets the time at which the timer checks this pin next: its deadline, or the time at which it
   * may have faded.
   */
  schedule(pin: Pin): void {
    const fades = pin.kind === "retain" ? this.#fadesAt(pin) : null;
    const ends = pin.deadlineBootMs;
    this.due.set(pin, fades === null ? ends : Math.min(fades, ends ?? Infinity));
  }

  #fadesAt(pin: Pin): number | null {
    const { priority, idleMs } = pin;
    if (priority === null || idleMs === null) return null;
    const leftMs = fadesAfterMs(priority, idleMs) - this.unusedMs(pin);
    return this.#parts.clock.bootMs() + Math.max(leftMs, 0) + FADE_LOOK_MS;
  }

  /**
   * Returns the time of the latest use of any of the pin's blocks, in seconds of the store's clock;
   * 0 if they were never used.
   */
  lastUsed(pin: Pin): number {
    const { table } = this;
    let last = 0;
    for (const { nodes } of pin.nodes.parts)
      for (const node of nodes) last = Math.max(last, table.lastUsedOf(node));
    return last;
  }

  unusedMs(pin: Pin): number {
    const since = Math.max(pin.createdSeconds, this.lastUsed(pin));
    return Math.max(0, this.#parts.nowSeconds() - since) * 1_000;
  }

  /** Returns the remaining priority of a soft pin; null for a pin or lease. */
  worthOf(pin: Pin): number | null {
    if (pin.kind !== "retain") return null;
    return worthAfter(pin.priority ?? 0, pin.idleMs, this.unusedMs(pin));
  }

  infoOf(pin: Pin): PinInfo {
    const { clock } = this.#parts;
    const { id, kind, owner, name, nodes, bytes, priority, idleMs, deadlineBootMs } = pin;
    const leftMs = (endMs: number) => Math.max(0, endMs - clock.bootMs());
    return {
      id,
      kind,
      owner,
      name,
      blocks: nodes.size,
      bytes,
      remainingMs: deadlineBootMs === null ? null : leftMs(deadlineBootMs),
      ageMs: Math.max(0, clock.monotonicMs() - pin.createdMs),
      priority,
      priorityNow: this.worthOf(pin),
      idleMs,
    };
  }
}

/** Remaining priority below which a soft pin ends. */
export const WORTH_MIN = 0.5;

/** An active pin, soft pin or lease. */
export interface Pin extends Omit<PinTerms, "purges" | "deadlineBootMs"> {
  readonly id: number;
  readonly group: PinGroup;
  readonly nodes: PinnedBlocks;
  /** Sum of the sizes of its blocks, each as it was when the block was first pinned. */
  bytes: number;
  /** On the boot clock; null if the pin does not expire. */
  deadlineBootMs: number | null;
  readonly createdWallMs: number;
  /** On the monotonic clock of this process. Negative if a previous run created the pin. */
  readonly createdMs: number;
  /** On the store's clock, in seconds. */
  readonly createdSeconds: number;
  /** Time on the boot clock at which the timer checks the pin next; null: never. */
  dueBootMs: number | null;
  /** True if the end of a lease removes its blocks; see `PinRequest.purges`. */
  purges: boolean;
  /**
   * True when the pin is out of force. Its blocks may still be in the process of being released.
   */
  ended: boolean;
  /**
   * False while `addAll` is adding blocks. Only complete pins are written to the ledger, so that a
   * crash leaves no part of one.
   */
  isWhole: boolean;
}

/**
 * Returns the remaining priority of a soft pin whose blocks have been unused for `unusedMs`. It is
 * constant for the first `idleMs` and then halves every `idleMs`.
 */
function worthAfter(priority: number, idleMs: number | null, unusedMs: number): number {
  if (idleMs === null) return priority;
  return priority * 0.5 ** Math.max(0, unusedMs / Math.max(1, idleMs) - 1);
}

/**
 * Returns the milliseconds without use after which the remaining priority falls below `WORTH_MIN`.
 */
function fadesAfterMs(priority: number, idleMs: number): number {
  if (priority < WORTH_MIN) return 0;
  return Math.max(1, idleMs) * (1 + Math.log2(priority / WORTH_MIN));
}

/** Maximum number of blocks per ledger record. A change of one block rewrites its whole part. */
const PART_BLOCKS = 4_096;

export interface PinPart {
  /** Index of the part in its pin, from 0. */
  readonly number: number;
  /** Nodes in the order in which they were added. */
  readonly nodes: Set<NodeId>;
}

/**
 * The blocks of one pin, without duplicates, in the order in which they were added. Divided into
 * parts, which the ledger stores as separate records.
 */
class PinnedBlocks {
  readonly #parts: PinPart[] = [{ number: 0, nodes: new Set() }];
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** The parts in order, at least one. A part may be empty. */
  get parts(): readonly PinPart[] {
    return this.#parts;
  }

  has(node: NodeId): boolean {
    return this.#parts.some(({ nodes }) => nodes.has(node));
  }

  /** Returns the part with this number. Creates it and all parts before it if they do not exist. */
  part(number: number): PinPart {
    while (this.#parts.length <= number)
      this.#parts.push({ number: this.#parts.length, nodes: new Set() });
    return this.#parts[number];
  }

  /**
   * Adds a node that is not in the pin yet, to the given part or to the last part if it has room.
   * Returns the part.
   */
  add(node: NodeId, number?: number): PinPart {
    const last = this.#parts.at(-1)!;
    const next = last.nodes.size >= PART_BLOCKS ? last.number + 1 : last.number;
    const part = this.part(number ?? next);
    part.nodes.add(node);
    this.#size++;
    return part;
  }

  /** Removes the node and returns the part that contained it, or null. */
  delete(node: NodeId): PinPart | null {
    const part = this.#parts.find(({ nodes }) => nodes.delete(node));
    if (part === undefined) return null;
    this.#size--;
    return part;
  }

  *[Symbol.iterator](): Generator<NodeId> {
    for (const { nodes } of this.#parts) yield* nodes;
  }
}

interface Due {
  readonly atBootMs: number;
  readonly pin: Pin;
}

/** Outdated heap entries are removed when there are this many more of them than of valid ones. */
const STALE_MIN = 1_024;

/** Times at which the timer must check pins. A pin has at most one; a new one replaces it. */
class DueTimes {
  readonly #heap = new MinHeap<Due>((a, b) => a.atBootMs < b.atBootMs);
  #waiting = 0;

  /** Number of pins that have a due time. */
  get size(): number {
    return this.#waiting;
  }

  /** Sets the due time of the pin; null removes it. */
  set(pin: Pin, atBootMs: number | null): void {
    if (pin.dueBootMs !== null) this.#waiting--;
    pin.dueBootMs = atBootMs;
    if (atBootMs !== null) {
      this.#waiting++;
      this.#heap.push({ atBootMs, pin });
    }
    if (this.#heap.size > this.#waiting * 2 + STALE_MIN) this.#heap.retain(isCurrent);
  }

  /** Returns the earliest due time, or null. */
  next(): number | null {
    for (let first = this.#heap.peek(); first !== undefined; first = this.#heap.peek()) {
      if (isCurrent(first)) return first.atBootMs;
      this.#heap.pop();
    }
    return null;
  }

  /**
   * Removes and returns the pin with the earliest due time if that is not after `bootMs`; otherwise
   * returns null.
   */
  take(bootMs: number): Pin | null {
    const next = this.next();
    if (next === null || next > bootMs) return null;
    const { pin } = this.#heap.pop()!;
    this.set(pin, null);
    return pin;
  }
}

function isCurrent({ pin, atBootMs }: Due): boolean {
  return pin.dueBootMs === atBootMs;
}
