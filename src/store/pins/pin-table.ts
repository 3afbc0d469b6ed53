import { assert, type Clock, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { HoldLedger } from "../index/index.ts";
import { MinHeap } from "./min-heap.ts";
import { PinRecords } from "./pin-records.ts";
import { isOnTiers, type PinGroup, PinIndex, PinnedBytes } from "./pinned-bytes.ts";
import type { HoldInfo, HoldKind, PinRequest } from "./pins.ts";

/** Soft pins are looked at again no sooner than that. */
const FADE_LOOK_MS = 1_000;

export interface PinTableOptions {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly ledger: HoldLedger | null;
  /** The store's clock, on which blocks were used. */
  readonly nowSeconds: () => number;
}

/** What a hold begins with; the rest follows from when that is. */
export type PinTerms = Pick<PinRequest, "kind" | "owner" | "name" | "priority" | "idleMs"> & {
  readonly purges: boolean;
  readonly deadlineBootMs: number | null;
  /** Null: now. */
  readonly createdWallMs: number | null;
};

interface Totals {
  holds: number;
  blocks: number;
  bytes: number;
}

/**
 * The holds in force, with everything that must change together when one does: the table's pins,
 * the indexes, the sums, the times, the rows.
 */
export class PinTable {
  readonly #parts: PinTableOptions;
  readonly index: PinIndex;
  readonly pinnedBytes: PinnedBytes;
  readonly records: PinRecords;
  readonly due = new DueTimes();
  readonly leases = new Map<string, Pin>();
  readonly totals: Readonly<Record<HoldKind, Totals>> = {
    pin: { holds: 0, blocks: 0, bytes: 0 },
    retain: { holds: 0, blocks: 0, bytes: 0 },
    lease: { holds: 0, blocks: 0, bytes: 0 },
  };
  readonly #pins = new Map<number, Pin>();
  /** Ascending; those that ended are cleared away when they are the greater part. */
  #ids: number[] = [];
  #lastId = 0;

  constructor(parts: PinTableOptions) {
    this.#parts = parts;
    this.pinnedBytes = new PinnedBytes(parts.table);
    this.index = new PinIndex(this.pinnedBytes);
    this.records = new PinRecords(parts);
  }

  get size(): number {
    return this.#pins.size;
  }

  /** Blocks under holds, each once for each hold. */
  get blocks(): number {
    const { pin, retain, lease } = this.totals;
    return pin.blocks + retain.blocks + lease.blocks;
  }

  /** Those in force, and those that are still letting go of their blocks. */
  all(): IterableIterator<Pin> {
    return this.#pins.values();
  }

  /** Holds in force with an id above `after`, in order. */
  *after(after: number): Generator<Pin> {
    let [low, high] = [0, this.#ids.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ids[middle]! > after) high = middle;
      else low = middle + 1;
    }
    for (; low < this.#ids.length; low++) {
      const pin = this.#pins.get(this.#ids[low]!);
      if (pin !== undefined && !pin.ended) yield pin;
    }
  }

  get(id: number): Pin | undefined {
    return this.#pins.get(id);
  }

  /** A hold without blocks yet. `id`: of a row; null: the next. Ids only ever grow. */
  begin(terms: PinTerms, id: number | null = null): Pin {
    const { clock, nowSeconds } = this.#parts;
    const { kind, owner, name, deadlineBootMs, priority, idleMs, purges } = terms;
    const wallMs = clock.wallMs();
    const createdWallMs = terms.createdWallMs ?? wallMs;
    const agoMs = Math.max(0, wallMs - createdWallMs);
    const pin: Pin = {
      id: id ?? ++this.#lastId,
      kind,
      owner,
      name,
      group: this.index.open(kind, owner, name),
      nodes: new PinnedBlocks(),
      bytes: 0,
      deadlineBootMs,
      priority,
      idleMs,
      createdWallMs,
      createdMs: clock.monotonicMs() - agoMs,
      createdSeconds: Math.max(0, nowSeconds() - Math.floor(agoMs / 1_000)),
      dueBootMs: null,
      purges,
      ended: false,
      isWhole: true,
    };
    this.#pins.set(pin.id, pin);
    this.#ids.push(pin.id);
    this.totals[kind].holds++;
    if (kind !== "lease") return pin;
    assert(name !== null && !this.leases.has(name), "a lease has a name of its own");
    this.leases.set(name, pin);
    return pin;
  }

  /** Ids given from now on are above this one. */
  skipIds(through: number): void {
    this.#lastId = Math.max(this.#lastId, through);
  }

  /** The part where it is now; null where the table counts as many pins on the node as it can. */
  join(pin: Pin, node: NodeId, number?: number): PinPart | null {
    if (!this.#parts.table.pin(node)) return null;
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

  /** The part where it was. The node may vanish. */
  leave(pin: Pin, node: NodeId): PinPart {
    const { pinnedBytes, index } = this;
    const bytes = pinnedBytes.bytesOf(node);
    index.leave(pin, node);
    const part = pin.nodes.delete(node);
    assert(part !== null, "a block that leaves a hold was in it");
    pin.bytes -= bytes;
    const totals = this.totals[pin.kind];
    totals.blocks--;
    totals.bytes -= bytes;
    pinnedBytes.remove(node, pin.kind === "retain");
    this.#parts.table.unpin(node);
    return part;
  }

  /** Not in force any more; its blocks are still to leave. Its row stays. */
  close(pin: Pin): void {
    pin.ended = true;
    this.due.set(pin, null);
    this.unname(pin);
  }

  /** Another lease has its name from now on. */
  unname(pin: Pin): void {
    if (pin.name !== null && this.leases.get(pin.name) === pin) this.leases.delete(pin.name);
  }

  /** A hold that has no blocks is over. */
  drop(pin: Pin): void {
    assert(pin.nodes.size === 0, "a hold that is dropped has no blocks");
    this.close(pin);
    this.index.close(pin);
    this.totals[pin.kind].holds--;
    this.#pins.delete(pin.id);
    if (this.#ids.length > this.#pins.size * 2 + 1_024)
      this.#ids = this.#ids.filter((id) => this.#pins.has(id));
  }

  /** Says to the timer when this hold must be looked at: when it ends, or may have faded. */
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

  /** Seconds of the store's clock at which any of its blocks was last used, or it began. */
  lastUsed(pin: Pin): number {
    const { table } = this.#parts;
    let last = 0;
    for (const { nodes } of pin.nodes.parts)
      for (const node of nodes) last = Math.max(last, table.lastUsedOf(node));
    return last;
  }

  unusedMs(pin: Pin): number {
    const since = Math.max(pin.createdSeconds, this.lastUsed(pin));
    return Math.max(0, this.#parts.nowSeconds() - since) * 1_000;
  }

  /** What is left of a soft pin's priority; null for others. */
  worthOf(pin: Pin): number | null {
    if (pin.kind !== "retain") return null;
    return worthAfter(pin.priority ?? 0, pin.idleMs, this.unusedMs(pin));
  }

  infoOf(pin: Pin): HoldInfo {
    const { clock } = this.#parts;
    const now = { monotonicMs: clock.monotonicMs(), bootMs: clock.bootMs() };
    return infoOf(pin, now, this.worthOf(pin));
  }

  isOnTiers(node: NodeId): boolean {
    return isOnTiers(this.#parts.table, node);
  }
}

/** What a soft pin must be worth to go on. */
export const WORTH_MIN = 0.5;

/** A hold that is in force. */
export interface Pin {
  readonly id: number;
  readonly kind: HoldKind;
  readonly owner: string;
  readonly name: string | null;
  readonly group: PinGroup;
  readonly nodes: PinnedBlocks;
  /** Of its blocks, each as long as it was when it first came under a hold. */
  bytes: number;
  /** On the clock of this boot; null: none. */
  deadlineBootMs: number | null;
  readonly priority: number | null;
  /** Of a soft pin; null: it stays worth what it was. */
  readonly idleMs: number | null;
  readonly createdWallMs: number;
  /** On the monotonic clock, also where an earlier run made it. */
  readonly createdMs: number;
  /** Seconds of the store's clock. */
  readonly createdSeconds: number;
  /** When the timer looks at it next, on the clock of this boot; null: never. */
  dueBootMs: number | null;
  /** As in `HoldRequest`. */
  purges: boolean;
  /** It holds nothing any more, but for blocks that it is still letting go of. */
  ended: boolean;
  /** False while blocks are added in several turns: a crash must not leave a half. */
  isWhole: boolean;
}

/** Milliseconds until it ends by itself, zero where that is overdue. */
function remainingMs(pin: Pin, bootMs: number): number | null {
  return pin.deadlineBootMs === null ? null : Math.max(0, pin.deadlineBootMs - bootMs);
}

/** What is left of a priority that halves with each `idleMs` without use, after the first one. */
function worthAfter(priority: number, idleMs: number | null, unusedMs: number): number {
  if (idleMs === null) return priority;
  return priority * 0.5 ** Math.max(0, unusedMs / Math.max(1, idleMs) - 1);
}

/** Without use for longer than this, a soft pin is worth less than `WORTH_MIN`. */
function fadesAfterMs(priority: number, idleMs: number): number {
  if (priority < WORTH_MIN) return 0;
  return Math.max(1, idleMs) * (1 + Math.log2(priority / WORTH_MIN));
}

interface Moment {
  readonly monotonicMs: number;
  readonly bootMs: number;
}

function infoOf(pin: Pin, now: Moment, priorityNow: number | null): HoldInfo {
  const { id, kind, owner, name, nodes, bytes, priority, idleMs } = pin;
  return {
    id,
    kind,
    owner,
    name,
    blocks: nodes.size,
    bytes,
    remainingMs: remainingMs(pin, now.bootMs),
    ageMs: Math.max(0, now.monotonicMs - pin.createdMs),
    priority,
    priorityNow,
    idleMs,
  };
}

/** Blocks that are written down together: what a change of one of them costs to write. */
const PART_BLOCKS = 4_096;

export interface PinPart {
  /** From 0: its place in the hold. */
  readonly number: number;
  /** In the order in which they were added. */
  readonly nodes: Set<NodeId>;
}

/** The blocks of one hold, each once, in the order in which they were added. */
class PinnedBlocks {
  readonly #parts: PinPart[] = [{ number: 0, nodes: new Set() }];
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** At least one; some may be empty. */
  get parts(): readonly PinPart[] {
    return this.#parts;
  }

  has(node: NodeId): boolean {
    return this.#parts.some(({ nodes }) => nodes.has(node));
  }

  /** Those below it are made, too. */
  part(number: number): PinPart {
    while (this.#parts.length <= number)
      this.#parts.push({ number: this.#parts.length, nodes: new Set() });
    return this.#parts[number]!;
  }

  /** The part where it is now: the last one that has room, or this one. It must not be there. */
  add(node: NodeId, number?: number): PinPart {
    const last = this.#parts.at(-1)!;
    const next = last.nodes.size >= PART_BLOCKS ? last.number + 1 : last.number;
    const part = this.part(number ?? next);
    part.nodes.add(node);
    this.#size++;
    return part;
  }

  /** The part where it was; null where it was in none. */
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

/** Entries that say nothing any more, beyond which they are cleared away. */
const STALE_MIN = 1_024;

/** Which hold the timer must look at next. A hold has one time at most; setting it moves it. */
class DueTimes {
  readonly #heap = new MinHeap<Due>((a, b) => a.atBootMs < b.atBootMs);
  #waiting = 0;

  /** Holds that have a time. */
  get size(): number {
    return this.#waiting;
  }

  /** Null: never. */
  set(pin: Pin, atBootMs: number | null): void {
    if (pin.dueBootMs !== null) this.#waiting--;
    pin.dueBootMs = atBootMs;
    if (atBootMs !== null) {
      this.#waiting++;
      this.#heap.push({ atBootMs, pin });
    }
    if (this.#heap.size > this.#waiting * 2 + STALE_MIN) this.#heap.retain(isCurrent);
  }

  /** The earliest time; null where no hold has one. */
  next(): number | null {
    for (let first = this.#heap.peek(); first !== undefined; first = this.#heap.peek()) {
      if (isCurrent(first)) return first.atBootMs;
      this.#heap.pop();
    }
    return null;
  }

  /** Takes out the earliest whose time has come; null where there is none. */
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

interface Holders {
  pins: number;
  readonly names: Set<string>;
}

/** Checks every sum and index of the holds against the holds; INTERNAL names the first broken. */
export function verifyPins(pinTable: PinTable, table: BlockTable): void {
  const nodes = new Map<NodeId, Holders>();
  const owners = new Map<string, Set<NodeId>>();
  const totals = { pin: [0, 0, 0], retain: [0, 0, 0], lease: [0, 0, 0] };
  let due = 0;
  for (const pin of pinTable.all()) {
    assert(pin.nodes.size > 0, "a hold has blocks");
    if (pin.kind === "lease" && !pin.ended)
      assert(pinTable.leases.get(pin.name!) === pin, "a lease has its name");
    if (pin.dueBootMs !== null) due++;
    else assert(pin.ended || pin.deadlineBootMs === null, "what ends is looked at");
    const named = owners.get(pin.owner) ?? new Set();
    owners.set(pin.owner, named);
    for (const node of pin.nodes) note(nodes, pin, node);
    if (pin.kind !== "retain") for (const node of pin.nodes) named.add(node);
    const bytes = sumOf(pin.nodes, pinTable);
    assert(pin.bytes === bytes, "a hold is as long as its blocks");
    const of = totals[pin.kind];
    for (const [i, more] of [1, pin.nodes.size, bytes].entries()) of[i] = of[i]! + more;
  }
  for (const [kind, [holds, blocks, bytes]] of Object.entries(totals)) {
    const said = pinTable.totals[kind as Pin["kind"]];
    const isRight = said.holds === holds && said.blocks === blocks && said.bytes === bytes;
    assert(isRight, `the sums of ${kind}s are right`);
  }
  assert(pinTable.due.size === due, "as many times as holds that have one");
  assert(pinTable.index.owners === owners.size, "an owner is known while it has holds");
  for (const [owner, named] of owners)
    assert(
      pinTable.index.keptBy(owner)?.bytes ===
        pinTable.index.keptBy(owner)?.sumOf(named, pinTable.pinnedBytes),
      "an owner's bytes are those of what it keeps",
    );
  assert(pinTable.index.nodes === nodes.size, "a node is known while it is held");
  for (const [node, { pins, names }] of nodes) {
    assert(table.pinsOf(node) === pins, "the table counts each hold on a block");
    const found = pinTable.index
      .holdersOf(node, Infinity)
      .map((by) => nameOf(by.kind, by.owner!, by.name));
    const isRight = found.length === names.size && found.every((name) => names.has(name));
    assert(isRight, "each holder of a block is known once");
  }
}

function note(nodes: Map<NodeId, Holders>, pin: Pin, node: NodeId): void {
  const holders = nodes.get(node) ?? { pins: 0, names: new Set() };
  nodes.set(node, holders);
  holders.pins++;
  holders.names.add(nameOf(pin.kind, pin.owner, pin.name ?? undefined));
}

function nameOf(kind: string, owner: string, name: string | undefined): string {
  return JSON.stringify([kind, owner, name ?? null]);
}

function sumOf(nodes: Iterable<NodeId>, pinTable: PinTable): number {
  let bytes = 0;
  for (const node of nodes) bytes += pinTable.pinnedBytes.bytesOf(node);
  return bytes;
}
