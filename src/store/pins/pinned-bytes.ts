import { assert, type HeldBy, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import type { Pin } from "./pin-table.ts";
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
export class PinnedBytes {
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
export class OwnerPinnedBytes {
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

  add(node: NodeId, pinnedBytes: PinnedBytes): void {
    for (let step = node; step !== 0; ) {
      const before = this.#counts.get(step) ?? 0;
      this.#counts.set(step, before + 1);
      const above = pinnedBytes.parentOf(step);
      if (before > 0 && (above === 0 || !this.#roots.delete(step))) return;
      if (before === 0) this.#bytes += pinnedBytes.bytesOf(step);
      if (above === 0) this.#roots.add(step);
      step = above;
    }
  }

  remove(node: NodeId, pinnedBytes: PinnedBytes): void {
    for (let step = node; step !== 0; ) {
      const left = this.#counts.get(step)! - 1;
      if (left > 0) {
        this.#counts.set(step, left);
        return;
      }
      this.#counts.delete(step);
      this.#bytes -= pinnedBytes.bytesOf(step);
      step = this.#roots.delete(step) ? (0 as NodeId) : pinnedBytes.parentOf(step);
    }
  }

  /** For checks: bytes that holds on these nodes keep; NaN where as many blocks are not counted. */
  sumOf(nodes: Iterable<NodeId>, pinnedBytes: PinnedBytes): number {
    const seen = new Set<NodeId>();
    let bytes = 0;
    for (const node of nodes) {
      for (let step = node; step !== 0 && !seen.has(step); ) {
        seen.add(step);
        bytes += pinnedBytes.bytesOf(step);
        step = this.#roots.has(step) ? (0 as NodeId) : pinnedBytes.parentOf(step);
      }
    }
    return seen.size === this.#counts.size ? bytes : Number.NaN;
  }
}

/** One hold, or several in the order in which they are let go of: the last one first. */
type PinStack = Pin | Pin[];

/** Who holds a node: all pins of an owner together, all its soft pins together, or one lease. */
export interface PinGroup {
  readonly by: HeldBy;
  readonly owner: Owner;
  /** Of a lease null: it has each block once. */
  readonly stacks: Map<NodeId, PinStack> | null;
}

interface Owner {
  readonly name: string;
  readonly pins: PinGroup;
  readonly retains: PinGroup;
  /** How many of its leases have the node. */
  readonly leased: Map<NodeId, number>;
  readonly kept: OwnerPinnedBytes;
  holds: number;
}

/** Finds holds by node and by owner; it changes no hold. */
export class PinIndex {
  readonly #owners = new Map<string, Owner>();
  readonly #groups = new Map<NodeId, PinGroup | Set<PinGroup>>();
  readonly #pinnedBytes: PinnedBytes;
  #kept = 0;

  constructor(pinnedBytes: PinnedBytes) {
    this.#pinnedBytes = pinnedBytes;
  }

  get owners(): number {
    return this.#owners.size;
  }

  /** Nodes that are under any hold. */
  get nodes(): number {
    return this.#groups.size;
  }

  hasOwner(name: string): boolean {
    return this.#owners.has(name);
  }

  /** What the pins and leases of the owner keep; null where it has no hold. */
  keptBy(owner: string): OwnerPinnedBytes | null {
    return this.#owners.get(owner)?.kept ?? null;
  }

  /** Blocks kept, once for each owner that keeps them. */
  get kept(): number {
    return this.#kept;
  }

  /** A hold comes into force; for whom its nodes are to `join`. */
  open(kind: HoldKind, name: string, lease: string | null): PinGroup {
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
        return { by: { kind, owner: name, name: lease ?? "" }, owner, stacks: null };
      default:
        return kind satisfies never;
    }
  }

  /** A hold is over: it has no nodes any more. */
  close({ group: { owner } }: Pin): void {
    if (--owner.holds === 0) this.#owners.delete(owner.name);
  }

  /** The node is one of the hold's from now on; the tally knows it already. */
  join(pin: Pin, node: NodeId): void {
    const { group } = pin;
    const { owner, stacks } = group;
    if (stacks !== null && !addToStack(stacks, node, pin)) return;
    this.#addGroup(node, group);
    if (stacks === null) {
      const leases = owner.leased.get(node) ?? 0;
      owner.leased.set(node, leases + 1);
      if (leases === 0 && !owner.pins.stacks!.has(node)) this.#keep(owner, node);
    } else if (group === owner.pins && !owner.leased.has(node)) this.#keep(owner, node);
  }

  /** The tally still knows the node. */
  leave(pin: Pin, node: NodeId): void {
    const { group } = pin;
    const { owner, stacks } = group;
    if (stacks !== null && !removeFromStack(stacks, node, pin)) return;
    this.#removeGroup(node, group);
    if (stacks === null) {
      const leases = owner.leased.get(node) ?? 0;
      assert(leases > 0, "a block that leaves a lease was in it");
      if (leases > 1) owner.leased.set(node, leases - 1);
      else owner.leased.delete(node);
      if (leases === 1 && !owner.pins.stacks!.has(node)) this.#unkeep(owner, node);
    } else if (group === owner.pins && !owner.leased.has(node)) this.#unkeep(owner, node);
  }

  #keep({ kept }: Owner, node: NodeId): void {
    const before = kept.size;
    kept.add(node, this.#pinnedBytes);
    this.#kept += kept.size - before;
  }

  #unkeep({ kept }: Owner, node: NodeId): void {
    const before = kept.size;
    kept.remove(node, this.#pinnedBytes);
    this.#kept += kept.size - before;
  }

  /** False where the hold surely does not have the node. */
  mayHave({ group: { owner, stacks } }: Pin, node: NodeId): boolean {
    return (stacks ?? owner.leased).has(node);
  }

  /** The owner's hold of this kind on the node that would end first; null where it has none. */
  endsFirst(kind: "pin" | "retain", owner: string, node: NodeId): Pin | null {
    const known = this.#owners.get(owner);
    const stack = (kind === "pin" ? known?.pins : known?.retains)?.stacks?.get(node);
    if (stack === undefined) return null;
    // One that ended is still letting go of its blocks.
    if (Array.isArray(stack)) return stack.findLast(({ ended }) => !ended) ?? null;
    return stack.ended ? null : stack;
  }

  /** Who holds the node, each party once: at most `max` of them. */
  holdersOf(node: NodeId, max: number): HeldBy[] {
    const found = this.#groups.get(node);
    if (found === undefined) return [];
    if (!(found instanceof Set)) return [found.by];
    const holders: HeldBy[] = [];
    for (const { by } of found) {
      if (holders.length === max) break;
      holders.push(by);
    }
    return holders;
  }

  #addGroup(node: NodeId, group: PinGroup): void {
    const there = this.#groups.get(node);
    if (there === undefined) this.#groups.set(node, group);
    else if (there instanceof Set) there.add(group);
    else this.#groups.set(node, new Set([there, group]));
  }

  #removeGroup(node: NodeId, group: PinGroup): void {
    const there = this.#groups.get(node);
    if (there instanceof Set && there.delete(group) && there.size > 0) return;
    this.#groups.delete(node);
  }
}

function newOwner(name: string): Owner {
  const owner = { name, leased: new Map(), kept: new OwnerPinnedBytes(), holds: 0 };
  const group = (kind: HoldKind) => ({ by: { kind, owner: name }, owner, stacks: new Map() });
  return Object.assign(owner, { pins: group("pin"), retains: group("retain") }) as Owner;
}

/** True where the node had no hold of this line before. */
function addToStack(stacks: Map<NodeId, PinStack>, node: NodeId, pin: Pin): boolean {
  const stack = stacks.get(node);
  if (stack === undefined) {
    stacks.set(node, pin);
    return true;
  }
  if (Array.isArray(stack)) stack.splice(placeInStack(stack, pin), 0, pin);
  else stacks.set(node, endsBefore(pin, stack) ? [stack, pin] : [pin, stack]);
  return false;
}

/** True where that was the last hold of the line. */
function removeFromStack(stacks: Map<NodeId, PinStack>, node: NodeId, pin: Pin): boolean {
  const stack = stacks.get(node);
  if (!Array.isArray(stack)) {
    assert(stack === pin, "a hold that leaves a block was on it");
    stacks.delete(node);
    return true;
  }
  const at = placeInStack(stack, pin);
  assert(stack[at] === pin, "a hold that leaves a block was on it");
  if (at === stack.length - 1) stack.pop();
  else stack.splice(at, 1);
  if (stack.length === 1) stacks.set(node, stack[0]!);
  return false;
}

/** Whether `a` is let go of before `b`: the one that would end first, then the newer one. */
function endsBefore(a: Pin, b: Pin): boolean {
  const endA = a.deadlineBootMs ?? Infinity;
  const endB = b.deadlineBootMs ?? Infinity;
  return endA === endB ? a.id > b.id : endA < endB;
}

/** Where the hold stands in the line, or would. */
function placeInStack(stack: readonly Pin[], pin: Pin): number {
  let high = stack.length;
  // Mostly it is the newest of those that have no end.
  const last = stack[high - 1]!;
  if (last === pin) return high - 1;
  if (endsBefore(pin, last)) return high;
  let low = 0;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (endsBefore(pin, stack[middle]!)) low = middle + 1;
    else high = middle;
  }
  return low;
}
