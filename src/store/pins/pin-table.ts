import { assert, type Clock, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { HoldLedger } from "../index/index.ts";
import { MinHeap } from "./min-heap.ts";
import { HoldRecords } from "./pin-records.ts";
import type { HoldInfo, HoldKind, HoldRequest } from "./pins.ts";
import { HoldIndex, isOnTiers, KeptTally, type Party } from "./protected-bytes.ts";

/** Soft pins are looked at again no sooner than that. */
const FADE_LOOK_MS = 1_000;

export interface BookParts {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly ledger: HoldLedger | null;
  /** The store's clock, on which blocks were used. */
  readonly nowSeconds: () => number;
}

/** What a hold begins with; the rest follows from when that is. */
export type HoldTerms = Pick<HoldRequest, "kind" | "owner" | "name" | "priority" | "idleMs"> & {
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
export class HoldBook {
  readonly #parts: BookParts;
  readonly index: HoldIndex;
  readonly tally: KeptTally;
  readonly records: HoldRecords;
  readonly due = new DueTimes();
  readonly leases = new Map<string, Hold>();
  readonly totals: Readonly<Record<HoldKind, Totals>> = {
    pin: { holds: 0, blocks: 0, bytes: 0 },
    retain: { holds: 0, blocks: 0, bytes: 0 },
    lease: { holds: 0, blocks: 0, bytes: 0 },
  };
  readonly #holds = new Map<number, Hold>();
  /** Ascending; those that ended are cleared away when they are the greater part. */
  #ids: number[] = [];
  #lastId = 0;

  constructor(parts: BookParts) {
    this.#parts = parts;
    this.tally = new KeptTally(parts.table);
    this.index = new HoldIndex(this.tally);
    this.records = new HoldRecords(parts);
  }

  get size(): number {
    return this.#holds.size;
  }

  /** Blocks under holds, each once for each hold. */
  get blocks(): number {
    const { pin, retain, lease } = this.totals;
    return pin.blocks + retain.blocks + lease.blocks;
  }

  /** Those in force, and those that are still letting go of their blocks. */
  holds(): IterableIterator<Hold> {
    return this.#holds.values();
  }

  /** Holds in force with an id above `after`, in order. */
  *after(after: number): Generator<Hold> {
    let [low, high] = [0, this.#ids.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ids[middle]! > after) high = middle;
      else low = middle + 1;
    }
    for (; low < this.#ids.length; low++) {
      const hold = this.#holds.get(this.#ids[low]!);
      if (hold !== undefined && !hold.ended) yield hold;
    }
  }

  get(id: number): Hold | undefined {
    return this.#holds.get(id);
  }

  /** A hold without blocks yet. `id`: of a row; null: the next. Ids only ever grow. */
  begin(terms: HoldTerms, id: number | null = null): Hold {
    const { clock, nowSeconds } = this.#parts;
    const { kind, owner, name, deadlineBootMs, priority, idleMs, purges } = terms;
    const wallMs = clock.wallMs();
    const createdWallMs = terms.createdWallMs ?? wallMs;
    const agoMs = Math.max(0, wallMs - createdWallMs);
    const hold: Hold = {
      id: id ?? ++this.#lastId,
      kind,
      owner,
      name,
      party: this.index.open(kind, owner, name),
      nodes: new HoldBlocks(),
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
    this.#holds.set(hold.id, hold);
    this.#ids.push(hold.id);
    this.totals[kind].holds++;
    if (kind !== "lease") return hold;
    assert(name !== null && !this.leases.has(name), "a lease has a name of its own");
    this.leases.set(name, hold);
    return hold;
  }

  /** Ids given from now on are above this one. */
  skipIds(through: number): void {
    this.#lastId = Math.max(this.#lastId, through);
  }

  /** The part where it is now; null where the table counts as many pins on the node as it can. */
  join(hold: Hold, node: NodeId, number?: number): HoldPart | null {
    if (!this.#parts.table.pin(node)) return null;
    const { tally, index } = this;
    tally.add(node, hold.kind === "retain");
    const bytes = tally.bytesOf(node);
    index.join(hold, node);
    const part = hold.nodes.add(node, number);
    hold.bytes += bytes;
    const totals = this.totals[hold.kind];
    totals.blocks++;
    totals.bytes += bytes;
    return part;
  }

  /** The part where it was. The node may vanish. */
  leave(hold: Hold, node: NodeId): HoldPart {
    const { tally, index } = this;
    const bytes = tally.bytesOf(node);
    index.leave(hold, node);
    const part = hold.nodes.delete(node);
    assert(part !== null, "a block that leaves a hold was in it");
    hold.bytes -= bytes;
    const totals = this.totals[hold.kind];
    totals.blocks--;
    totals.bytes -= bytes;
    tally.remove(node, hold.kind === "retain");
    this.#parts.table.unpin(node);
    return part;
  }

  /** Not in force any more; its blocks are still to leave. Its row stays. */
  close(hold: Hold): void {
    hold.ended = true;
    this.due.set(hold, null);
    this.unname(hold);
  }

  /** Another lease has its name from now on. */
  unname(hold: Hold): void {
    if (hold.name !== null && this.leases.get(hold.name) === hold) this.leases.delete(hold.name);
  }

  /** A hold that has no blocks is over. */
  drop(hold: Hold): void {
    assert(hold.nodes.size === 0, "a hold that is dropped has no blocks");
    this.close(hold);
    this.index.close(hold);
    this.totals[hold.kind].holds--;
    this.#holds.delete(hold.id);
    if (this.#ids.length > this.#holds.size * 2 + 1_024)
      this.#ids = this.#ids.filter((id) => this.#holds.has(id));
  }

  /** Says to the timer when this hold must be looked at: when it ends, or may have faded. */
  schedule(hold: Hold): void {
    const fades = hold.kind === "retain" ? this.#fadesAt(hold) : null;
    const ends = hold.deadlineBootMs;
    this.due.set(hold, fades === null ? ends : Math.min(fades, ends ?? Infinity));
  }

  #fadesAt(hold: Hold): number | null {
    const { priority, idleMs } = hold;
    if (priority === null || idleMs === null) return null;
    const leftMs = fadesAfterMs(priority, idleMs) - this.unusedMs(hold);
    return this.#parts.clock.bootMs() + Math.max(leftMs, 0) + FADE_LOOK_MS;
  }

  /** Seconds of the store's clock at which any of its blocks was last used, or it began. */
  lastUsed(hold: Hold): number {
    const { table } = this.#parts;
    let last = 0;
    for (const { nodes } of hold.nodes.parts)
      for (const node of nodes) last = Math.max(last, table.lastUsedOf(node));
    return last;
  }

  unusedMs(hold: Hold): number {
    const since = Math.max(hold.createdSeconds, this.lastUsed(hold));
    return Math.max(0, this.#parts.nowSeconds() - since) * 1_000;
  }

  /** What is left of a soft pin's priority; null for others. */
  worthOf(hold: Hold): number | null {
    if (hold.kind !== "retain") return null;
    return worthAfter(hold.priority ?? 0, hold.idleMs, this.unusedMs(hold));
  }

  infoOf(hold: Hold): HoldInfo {
    const { clock } = this.#parts;
    const now = { monotonicMs: clock.monotonicMs(), bootMs: clock.bootMs() };
    return infoOf(hold, now, this.worthOf(hold));
  }

  isOnTiers(node: NodeId): boolean {
    return isOnTiers(this.#parts.table, node);
  }
}

/** What a soft pin must be worth to go on. */
export const WORTH_MIN = 0.5;

/** A hold that is in force. */
export interface Hold {
  readonly id: number;
  readonly kind: HoldKind;
  readonly owner: string;
  readonly name: string | null;
  readonly party: Party;
  readonly nodes: HoldBlocks;
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
function remainingMs(hold: Hold, bootMs: number): number | null {
  return hold.deadlineBootMs === null ? null : Math.max(0, hold.deadlineBootMs - bootMs);
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

function infoOf(hold: Hold, now: Moment, priorityNow: number | null): HoldInfo {
  const { id, kind, owner, name, nodes, bytes, priority, idleMs } = hold;
  return {
    id,
    kind,
    owner,
    name,
    blocks: nodes.size,
    bytes,
    remainingMs: remainingMs(hold, now.bootMs),
    ageMs: Math.max(0, now.monotonicMs - hold.createdMs),
    priority,
    priorityNow,
    idleMs,
  };
}

/** Blocks that are written down together: what a change of one of them costs to write. */
const PART_BLOCKS = 4_096;

export interface HoldPart {
  /** From 0: its place in the hold. */
  readonly number: number;
  /** In the order in which they were added. */
  readonly nodes: Set<NodeId>;
}

/** The blocks of one hold, each once, in the order in which they were added. */
class HoldBlocks {
  readonly #parts: HoldPart[] = [{ number: 0, nodes: new Set() }];
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** At least one; some may be empty. */
  get parts(): readonly HoldPart[] {
    return this.#parts;
  }

  has(node: NodeId): boolean {
    return this.#parts.some(({ nodes }) => nodes.has(node));
  }

  /** Those below it are made, too. */
  part(number: number): HoldPart {
    while (this.#parts.length <= number)
      this.#parts.push({ number: this.#parts.length, nodes: new Set() });
    return this.#parts[number]!;
  }

  /** The part where it is now: the last one that has room, or this one. It must not be there. */
  add(node: NodeId, number?: number): HoldPart {
    const last = this.#parts.at(-1)!;
    const next = last.nodes.size >= PART_BLOCKS ? last.number + 1 : last.number;
    const part = this.part(number ?? next);
    part.nodes.add(node);
    this.#size++;
    return part;
  }

  /** The part where it was; null where it was in none. */
  delete(node: NodeId): HoldPart | null {
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
  readonly hold: Hold;
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
  set(hold: Hold, atBootMs: number | null): void {
    if (hold.dueBootMs !== null) this.#waiting--;
    hold.dueBootMs = atBootMs;
    if (atBootMs !== null) {
      this.#waiting++;
      this.#heap.push({ atBootMs, hold });
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
  take(bootMs: number): Hold | null {
    const next = this.next();
    if (next === null || next > bootMs) return null;
    const { hold } = this.#heap.pop()!;
    this.set(hold, null);
    return hold;
  }
}

function isCurrent({ hold, atBootMs }: Due): boolean {
  return hold.dueBootMs === atBootMs;
}

interface Holders {
  pins: number;
  readonly names: Set<string>;
}

/** Checks every sum and index of the holds against the holds; INTERNAL names the first broken. */
export function verifyHolds(book: HoldBook, table: BlockTable): void {
  const nodes = new Map<NodeId, Holders>();
  const owners = new Map<string, Set<NodeId>>();
  const totals = { pin: [0, 0, 0], retain: [0, 0, 0], lease: [0, 0, 0] };
  let due = 0;
  for (const hold of book.holds()) {
    assert(hold.nodes.size > 0, "a hold has blocks");
    if (hold.kind === "lease" && !hold.ended)
      assert(book.leases.get(hold.name!) === hold, "a lease has its name");
    if (hold.dueBootMs !== null) due++;
    else assert(hold.ended || hold.deadlineBootMs === null, "what ends is looked at");
    const named = owners.get(hold.owner) ?? new Set();
    owners.set(hold.owner, named);
    for (const node of hold.nodes) note(nodes, hold, node);
    if (hold.kind !== "retain") for (const node of hold.nodes) named.add(node);
    const bytes = sumOf(hold.nodes, book);
    assert(hold.bytes === bytes, "a hold is as long as its blocks");
    const of = totals[hold.kind];
    for (const [i, more] of [1, hold.nodes.size, bytes].entries()) of[i] = of[i]! + more;
  }
  for (const [kind, [holds, blocks, bytes]] of Object.entries(totals)) {
    const said = book.totals[kind as Hold["kind"]];
    const isRight = said.holds === holds && said.blocks === blocks && said.bytes === bytes;
    assert(isRight, `the sums of ${kind}s are right`);
  }
  assert(book.due.size === due, "as many times as holds that have one");
  assert(book.index.owners === owners.size, "an owner is known while it has holds");
  for (const [owner, named] of owners)
    assert(
      book.index.keptBy(owner)?.bytes === book.index.keptBy(owner)?.sumOf(named, book.tally),
      "an owner's bytes are those of what it keeps",
    );
  assert(book.index.nodes === nodes.size, "a node is known while it is held");
  for (const [node, { pins, names }] of nodes) {
    assert(table.pinsOf(node) === pins, "the table counts each hold on a block");
    const found = book.index
      .holdersOf(node, Infinity)
      .map((by) => nameOf(by.kind, by.owner!, by.name));
    const isRight = found.length === names.size && found.every((name) => names.has(name));
    assert(isRight, "each holder of a block is known once");
  }
}

function note(nodes: Map<NodeId, Holders>, hold: Hold, node: NodeId): void {
  const holders = nodes.get(node) ?? { pins: 0, names: new Set() };
  nodes.set(node, holders);
  holders.pins++;
  holders.names.add(nameOf(hold.kind, hold.owner, hold.name ?? undefined));
}

function nameOf(kind: string, owner: string, name: string | undefined): string {
  return JSON.stringify([kind, owner, name ?? null]);
}

function sumOf(nodes: Iterable<NodeId>, book: HoldBook): number {
  let bytes = 0;
  for (const node of nodes) bytes += book.tally.bytesOf(node);
  return bytes;
}
