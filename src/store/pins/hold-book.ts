import { assert, type Clock, type NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { HoldLedger } from "../index/index.ts";
import { DueTimes } from "./due-times.ts";
import { fadesAfterMs, type Hold, infoOf, worthAfter } from "./hold.ts";
import { HoldBlocks, type HoldPart } from "./hold-blocks.ts";
import { HoldIndex } from "./hold-index.ts";
import { HoldRecords } from "./hold-records.ts";
import type { HoldInfo, HoldKind, HoldRequest } from "./holds.ts";
import { isOnTiers, KeptTally } from "./kept-tally.ts";

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
