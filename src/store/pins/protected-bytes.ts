import { assert, type HeldBy, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import type { Hold } from "./pin-table.ts";
import type { HoldKind } from "./pins.ts";

/**
 * Which blocks only soft pins keep. The table knows that a block is kept, not by whom; a budget for
 * pins and leases must leave out what soft pins keep. So this counts, apart for both sorts, the
 * holds on a node and its children that are kept in turn: each sort keeps a node while its count is
 * above zero.
 *
 * A node that gains a parent while it is counted is taken into account when a hold next reaches it;
 * until then the parent passes for kept by pins, which errs on the strict side. One entry for each
 * node of the table; memory is taken as nodes come under holds.
 */
export class KeptTally {
  readonly #table: BlockTable;
  readonly #hard: Uint32Array;
  readonly #soft: Uint32Array;
  /** The parent in whose counts the node is. */
  readonly #parent: Int32Array;
  readonly #bytes: Uint32Array;
  #softOnlyBytes = 0;

  constructor(table: BlockTable) {
    const entries = table.nodesMax + 1;
    this.#table = table;
    this.#hard = new Uint32Array(new ArrayBuffer(entries * 4));
    this.#soft = new Uint32Array(new ArrayBuffer(entries * 4));
    this.#parent = new Int32Array(new ArrayBuffer(entries * 4));
    this.#bytes = new Uint32Array(new ArrayBuffer(entries * 4));
  }

  /** Bytes in RAM or on SSD that no pin or lease keeps, but a soft pin. */
  get softOnlyBytes(): number {
    return this.#softOnlyBytes;
  }

  isSoftOnly(node: NodeId): boolean {
    return this.#hard[node] === 0 && this.#soft[node] !== 0;
  }

  /** Its length when it came under a hold: what is added for it is what will be taken away. */
  bytesOf(node: NodeId): number {
    return this.#bytes[node]!;
  }

  /** In whose counts the node is: its parent when it came under a hold, or when one reached it. */
  parentOf(node: NodeId): NodeId {
    return this.#parent[node] as NodeId;
  }

  add(node: NodeId, isSoft: boolean): void {
    this.#raise(node, isSoft);
  }

  remove(node: NodeId, isSoft: boolean): void {
    const [counts, parent] = [isSoft ? this.#soft : this.#hard, this.#parent];
    for (let step: number = node; step !== 0; ) {
      assert(counts[step]! > 0, "a hold that ends was counted");
      const before = this.#softOnlyOf(step);
      counts[step] = counts[step]! - 1;
      this.#softOnlyBytes += this.#softOnlyOf(step) - before;
      if (counts[step] !== 0) return;
      const above = parent[step]!;
      if (this.#hard[step] === 0 && this.#soft[step] === 0) {
        parent[step] = 0;
        this.#bytes[step] = 0;
      }
      step = above;
    }
  }

  #raise(node: number, isSoft: boolean): void {
    const [counts, parent] = [isSoft ? this.#soft : this.#hard, this.#parent];
    const others = isSoft ? this.#hard : this.#soft;
    for (let step = node; step !== 0; step = parent[step]!) {
      if (counts[step] === 0 && others[step] === 0) this.#enter(step);
      else if (parent[step] === 0) this.#adopt(step);
      const before = this.#softOnlyOf(step);
      counts[step] = counts[step]! + 1;
      this.#softOnlyBytes += this.#softOnlyOf(step) - before;
      if (counts[step] !== 1) return;
    }
  }

  #enter(node: number): void {
    const table = this.#table;
    this.#parent[node] = table.parentOf(node as NodeId);
    this.#bytes[node] = isOnTiers(table, node as NodeId) ? table.bytesOf(node as NodeId) : 0;
  }

  /** The node was counted as one without parent; perhaps it has one by now. */
  #adopt(node: number): void {
    const above = this.#table.parentOf(node as NodeId);
    if (above === 0) return;
    this.#parent[node] = above;
    if (this.#hard[node] !== 0) this.#raise(above, false);
    if (this.#soft[node] !== 0) this.#raise(above, true);
  }

  #softOnlyOf(node: number): number {
    return this.#hard[node] === 0 && this.#soft[node] !== 0 ? this.#bytes[node]! : 0;
  }
}

export function isOnTiers(table: BlockTable, node: NodeId): boolean {
  return (table.residencyOf(node) & (Tier.ram | Tier.ssd)) !== 0;
}

/**
 * What the pins and leases of one owner keep: the blocks they name and those above them, each once,
 * whoever else keeps them, too. Counts for each block the owner's holds on it and its children that
 * are kept in turn. The tally of all holds knows parents and lengths: there a block is entered
 * before it is here, and leaves after it.
 */
export class OwnerKept {
  readonly #counts = new Map<NodeId, number>();
  /** Counted as blocks without parent; they may have one by now. */
  readonly #roots = new Set<NodeId>();
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  /** Blocks that are kept. */
  get size(): number {
    return this.#counts.size;
  }

  has(node: NodeId): boolean {
    return this.#counts.has(node);
  }

  add(node: NodeId, tally: KeptTally): void {
    for (let step = node; step !== 0; ) {
      const before = this.#counts.get(step) ?? 0;
      this.#counts.set(step, before + 1);
      const above = tally.parentOf(step);
      if (before > 0 && (above === 0 || !this.#roots.delete(step))) return;
      if (before === 0) this.#bytes += tally.bytesOf(step);
      if (above === 0) this.#roots.add(step);
      step = above;
    }
  }

  remove(node: NodeId, tally: KeptTally): void {
    for (let step = node; step !== 0; ) {
      const left = this.#counts.get(step)! - 1;
      if (left > 0) {
        this.#counts.set(step, left);
        return;
      }
      this.#counts.delete(step);
      this.#bytes -= tally.bytesOf(step);
      step = this.#roots.delete(step) ? (0 as NodeId) : tally.parentOf(step);
    }
  }

  /** For checks: bytes that holds on these nodes keep; NaN where as many blocks are not counted. */
  sumOf(nodes: Iterable<NodeId>, tally: KeptTally): number {
    const seen = new Set<NodeId>();
    let bytes = 0;
    for (const node of nodes) {
      for (let step = node; step !== 0 && !seen.has(step); ) {
        seen.add(step);
        bytes += tally.bytesOf(step);
        step = this.#roots.has(step) ? (0 as NodeId) : tally.parentOf(step);
      }
    }
    return seen.size === this.#counts.size ? bytes : Number.NaN;
  }
}

/** One hold, or several in the order in which they are let go of: the last one first. */
type Line = Hold | Hold[];

/** Who holds a node: all pins of an owner together, all its soft pins together, or one lease. */
export interface Party {
  readonly by: HeldBy;
  readonly owner: Owner;
  /** Of a lease null: it has each block once. */
  readonly lines: Map<NodeId, Line> | null;
}

interface Owner {
  readonly name: string;
  readonly pins: Party;
  readonly retains: Party;
  /** How many of its leases have the node. */
  readonly leased: Map<NodeId, number>;
  readonly kept: OwnerKept;
  holds: number;
}

/** Finds holds by node and by owner; it changes no hold. */
export class HoldIndex {
  readonly #owners = new Map<string, Owner>();
  readonly #parties = new Map<NodeId, Party | Set<Party>>();
  readonly #tally: KeptTally;
  #kept = 0;

  constructor(tally: KeptTally) {
    this.#tally = tally;
  }

  get owners(): number {
    return this.#owners.size;
  }

  /** Nodes that are under any hold. */
  get nodes(): number {
    return this.#parties.size;
  }

  hasOwner(name: string): boolean {
    return this.#owners.has(name);
  }

  /** What the pins and leases of the owner keep; null where it has no hold. */
  keptBy(owner: string): OwnerKept | null {
    return this.#owners.get(owner)?.kept ?? null;
  }

  /** Blocks kept, once for each owner that keeps them. */
  get kept(): number {
    return this.#kept;
  }

  /** A hold comes into force; for whom its nodes are to `join`. */
  open(kind: HoldKind, name: string, lease: string | null): Party {
    let owner = this.#owners.get(name);
    if (owner === undefined) {
      owner = newOwner(name);
      this.#owners.set(name, owner);
    }
    owner.holds++;
    switch (kind) {
      case "pin":
        return owner.pins;
      case "retain":
        return owner.retains;
      case "lease":
        return { by: { kind, owner: name, name: lease ?? "" }, owner, lines: null };
      default:
        return kind satisfies never;
    }
  }

  /** A hold is over: it has no nodes any more. */
  close({ party: { owner } }: Hold): void {
    if (--owner.holds === 0) this.#owners.delete(owner.name);
  }

  /** The node is one of the hold's from now on; the tally knows it already. */
  join(hold: Hold, node: NodeId): void {
    const { party } = hold;
    const { owner, lines } = party;
    if (lines !== null && !addToLine(lines, node, hold)) return;
    this.#seat(node, party);
    if (lines === null) {
      const leases = owner.leased.get(node) ?? 0;
      owner.leased.set(node, leases + 1);
      if (leases === 0 && !owner.pins.lines!.has(node)) this.#keep(owner, node);
    } else if (party === owner.pins && !owner.leased.has(node)) this.#keep(owner, node);
  }

  /** The tally still knows the node. */
  leave(hold: Hold, node: NodeId): void {
    const { party } = hold;
    const { owner, lines } = party;
    if (lines !== null && !takeFromLine(lines, node, hold)) return;
    this.#unseat(node, party);
    if (lines === null) {
      const leases = owner.leased.get(node) ?? 0;
      assert(leases > 0, "a block that leaves a lease was in it");
      if (leases > 1) owner.leased.set(node, leases - 1);
      else owner.leased.delete(node);
      if (leases === 1 && !owner.pins.lines!.has(node)) this.#keepNot(owner, node);
    } else if (party === owner.pins && !owner.leased.has(node)) this.#keepNot(owner, node);
  }

  #keep({ kept }: Owner, node: NodeId): void {
    const before = kept.size;
    kept.add(node, this.#tally);
    this.#kept += kept.size - before;
  }

  #keepNot({ kept }: Owner, node: NodeId): void {
    const before = kept.size;
    kept.remove(node, this.#tally);
    this.#kept += kept.size - before;
  }

  /** False where the hold surely does not have the node. */
  mayHave({ party: { owner, lines } }: Hold, node: NodeId): boolean {
    return (lines ?? owner.leased).has(node);
  }

  /** The owner's hold of this kind on the node that would end first; null where it has none. */
  endsFirst(kind: "pin" | "retain", owner: string, node: NodeId): Hold | null {
    const known = this.#owners.get(owner);
    const line = (kind === "pin" ? known?.pins : known?.retains)?.lines?.get(node);
    if (line === undefined) return null;
    // One that ended is still letting go of its blocks.
    if (Array.isArray(line)) return line.findLast(({ ended }) => !ended) ?? null;
    return line.ended ? null : line;
  }

  /** Who holds the node, each party once: at most `max` of them. */
  holdersOf(node: NodeId, max: number): HeldBy[] {
    const found = this.#parties.get(node);
    if (found === undefined) return [];
    if (!(found instanceof Set)) return [found.by];
    const holders: HeldBy[] = [];
    for (const { by } of found) {
      if (holders.length === max) break;
      holders.push(by);
    }
    return holders;
  }

  #seat(node: NodeId, party: Party): void {
    const there = this.#parties.get(node);
    if (there === undefined) this.#parties.set(node, party);
    else if (there instanceof Set) there.add(party);
    else this.#parties.set(node, new Set([there, party]));
  }

  #unseat(node: NodeId, party: Party): void {
    const there = this.#parties.get(node);
    if (there instanceof Set && there.delete(party) && there.size > 0) return;
    this.#parties.delete(node);
  }
}

function newOwner(name: string): Owner {
  const owner = { name, leased: new Map(), kept: new OwnerKept(), holds: 0 };
  const party = (kind: HoldKind) => ({ by: { kind, owner: name }, owner, lines: new Map() });
  return Object.assign(owner, { pins: party("pin"), retains: party("retain") }) as Owner;
}

/** True where the node had no hold of this line before. */
function addToLine(lines: Map<NodeId, Line>, node: NodeId, hold: Hold): boolean {
  const line = lines.get(node);
  if (line === undefined) {
    lines.set(node, hold);
    return true;
  }
  if (Array.isArray(line)) line.splice(placeIn(line, hold), 0, hold);
  else lines.set(node, goesBefore(hold, line) ? [line, hold] : [hold, line]);
  return false;
}

/** True where that was the last hold of the line. */
function takeFromLine(lines: Map<NodeId, Line>, node: NodeId, hold: Hold): boolean {
  const line = lines.get(node);
  if (!Array.isArray(line)) {
    assert(line === hold, "a hold that leaves a block was on it");
    lines.delete(node);
    return true;
  }
  const at = placeIn(line, hold);
  assert(line[at] === hold, "a hold that leaves a block was on it");
  if (at === line.length - 1) line.pop();
  else line.splice(at, 1);
  if (line.length === 1) lines.set(node, line[0]!);
  return false;
}

/** Whether `a` is let go of before `b`: the one that would end first, then the newer one. */
function goesBefore(a: Hold, b: Hold): boolean {
  const endA = a.deadlineBootMs ?? Infinity;
  const endB = b.deadlineBootMs ?? Infinity;
  return endA === endB ? a.id > b.id : endA < endB;
}

/** Where the hold stands in the line, or would. */
function placeIn(line: readonly Hold[], hold: Hold): number {
  let high = line.length;
  // Mostly it is the newest of those that have no end.
  const last = line[high - 1]!;
  if (last === hold) return high - 1;
  if (goesBefore(hold, last)) return high;
  let low = 0;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (goesBefore(hold, line[middle]!)) low = middle + 1;
    else high = middle;
  }
  return low;
}
