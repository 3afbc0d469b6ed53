import { assert, type HeldBy, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import type { Pin } from "./pin-table.ts";
import type { PinKind } from "./pins.ts";

/**
 * Counts the bytes that only soft pins protect. The block table records that a block is protected,
 * but not by which kind of pin, and the budget of pins and leases must not include blocks protected
 * by soft pins alone. For each kind (hard: pins and leases; soft: soft pins) the class counts, per
 * node, its pins plus those of its children that the kind protects. The kind protects the node
 * while the count is above zero.
 *
 * If a node gets a parent while it is counted, the next pin that reaches the node adds the count to
 * the parent. Until then the parent counts as protected by hard pins, so the budget is never
 * exceeded. Memory: one entry per table node, touched only when the node is pinned.
 */
export class PinnedBytes {
  readonly #table: BlockTable;
  readonly #hard: Uint32Array;
  readonly #soft: Uint32Array;
  /** Per node: the parent whose count includes the node. */
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

  /** Bytes in RAM or on SSD that soft pins protect and no pin or lease does. */
  get softOnlyBytes(): number {
    return this.#softOnlyBytes;
  }

  isSoftOnly(node: NodeId): boolean {
    return this.#hard[node] === 0 && this.#soft[node] !== 0;
  }

  /**
   * Size of the block in bytes when it was first pinned. The same number is added and later
   * subtracted, even if the size changes.
   */
  bytesOf(node: NodeId): number {
    return this.#bytes[node];
  }

  /**
   * Returns the parent whose count includes the node: its parent when it was first pinned, or the
   * one that a later pin found.
   */
  parentOf(node: NodeId): NodeId {
    return this.#parent[node] as NodeId;
  }

  remove(node: NodeId, isSoft: boolean): void {
    const [counts, parent] = [isSoft ? this.#soft : this.#hard, this.#parent];
    for (let step: number = node; step !== 0; ) {
      assert(counts[step] > 0, "a pin that ends was counted");
      const before = this.#softOnlyOf(step);
      counts[step] = counts[step] - 1;
      this.#softOnlyBytes += this.#softOnlyOf(step) - before;
      if (counts[step] !== 0) return;
      const above = parent[step];
      if (this.#hard[step] === 0 && this.#soft[step] === 0) {
        parent[step] = 0;
        this.#bytes[step] = 0;
      }
      step = above;
    }
  }

  add(node: number, isSoft: boolean): void {
    const [counts, parent] = [isSoft ? this.#soft : this.#hard, this.#parent];
    const others = isSoft ? this.#hard : this.#soft;
    for (let step = node; step !== 0; step = parent[step]) {
      if (counts[step] === 0 && others[step] === 0) this.#enter(step);
      else if (parent[step] === 0) this.#adopt(step);
      const before = this.#softOnlyOf(step);
      counts[step] = counts[step] + 1;
      this.#softOnlyBytes += this.#softOnlyOf(step) - before;
      if (counts[step] !== 1) return;
    }
  }

  #enter(node: number): void {
    const table = this.#table;
    this.#parent[node] = table.parentOf(node as NodeId);
    this.#bytes[node] = isOnTiers(table, node as NodeId) ? table.bytesOf(node as NodeId) : 0;
  }

  /**
   * Adds the counts of a node that was counted without a parent to its parent, if it has one now.
   */
  #adopt(node: number): void {
    const above = this.#table.parentOf(node as NodeId);
    if (above === 0) return;
    this.#parent[node] = above;
    if (this.#hard[node] !== 0) this.add(above, false);
    if (this.#soft[node] !== 0) this.add(above, true);
  }

  #softOnlyOf(node: number): number {
    return this.#hard[node] === 0 && this.#soft[node] !== 0 ? this.#bytes[node] : 0;
  }
}

export function isOnTiers(table: BlockTable, node: NodeId): boolean {
  return (table.residencyOf(node) & (Tier.ram | Tier.ssd)) !== 0;
}

/**
 * The blocks that the pins and leases of one owner protect: the pinned blocks and their ancestors,
 * each once, even if other owners protect them too. Counts, per block, the owner's pins on it plus
 * those of its children that the owner protects. Parents and sizes come from `PinnedBytes`: a block
 * must be added there before it is added here, and removed there after it is removed here.
 */
export class OwnerPinnedBytes {
  readonly #counts = new Map<NodeId, number>();
  /** Blocks that had no parent when they were counted. They may have one now. */
  readonly roots = new Set<NodeId>();
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  /** Number of blocks that the owner's pins and leases protect. */
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
      if (before > 0 && (above === 0 || !this.roots.delete(step))) return;
      if (before === 0) this.#bytes += pinnedBytes.bytesOf(step);
      if (above === 0) this.roots.add(step);
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
      step = this.roots.delete(step) ? (0 as NodeId) : pinnedBytes.parentOf(step);
    }
  }
}

/** The pins of one group on one node. The last pin in the array is unpinned first. */
type PinStack = Pin | Pin[];

/**
 * The pins that `HeldBy` reports as one entry for a node: all pins of an owner, all its soft pins,
 * or one lease.
 */
export interface PinGroup {
  readonly by: HeldBy;
  readonly owner: Owner;
  /** Pins by node. Null for a lease, which contains each block at most once. */
  readonly stacks: Map<NodeId, PinStack> | null;
}

interface Owner {
  readonly name: string;
  readonly pins: PinGroup;
  readonly retains: PinGroup;
  /** Per node: number of the owner's leases that contain it. */
  readonly leased: Map<NodeId, number>;
  readonly kept: OwnerPinnedBytes;
  holds: number;
}

/** Indexes pins by node and by owner. Does not change the pins. */
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

  /** Number of nodes with at least one pin. */
  get nodes(): number {
    return this.#groups.size;
  }

  hasOwner(name: string): boolean {
    return this.#owners.has(name);
  }

  /**
   * Returns the blocks that the pins and leases of the owner protect. Null if the owner has no pins
   * of any kind.
   */
  keptBy(owner: string): OwnerPinnedBytes | null {
    return this.#owners.get(owner)?.kept ?? null;
  }

  /** Sum, over all owners, of the blocks that each owner protects. */
  get kept(): number {
    return this.#kept;
  }

  /** Adds a new pin without blocks to the index and returns its group. */
  open(kind: PinKind, name: string, lease: string | null): PinGroup {
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

  /** Removes a pin without blocks from the index. */
  close({ group: { owner } }: Pin): void {
    if (--owner.holds === 0) this.#owners.delete(owner.name);
  }

  /** Adds a node of the pin to the index. `PinnedBytes` must already contain the node. */
  join(pin: Pin, node: NodeId): void {
    const { group } = pin;
    const { owner, stacks } = group;
    const wasKept = isKeptBy(owner, node);
    if (stacks === null) owner.leased.set(node, (owner.leased.get(node) ?? 0) + 1);
    else if (!addToStack(stacks, node, pin)) return;
    this.#addGroup(node, group);
    if (!wasKept) this.#recount(owner, node, "add");
  }

  /** Removes a node of the pin from the index. `PinnedBytes` must still contain the node. */
  leave(pin: Pin, node: NodeId): void {
    const { group } = pin;
    const { owner, stacks } = group;
    const wasKept = isKeptBy(owner, node);
    if (stacks === null) {
      const leases = owner.leased.get(node) ?? 0;
      assert(leases > 0, "a block that leaves a lease was in it");
      if (leases > 1) owner.leased.set(node, leases - 1);
      else owner.leased.delete(node);
    } else if (!removeFromStack(stacks, node, pin)) return;
    this.#removeGroup(node, group);
    if (wasKept) this.#recount(owner, node, "remove");
  }

  /**
   * Updates the owner's protected blocks after a pin was added to the node or removed from it. Does
   * nothing if other pins of the owner are on the node.
   */
  #recount(owner: Owner, node: NodeId, change: "add" | "remove"): void {
    if (isKeptBy(owner, node) !== (change === "add")) return;
    const before = owner.kept.size;
    owner.kept[change](node, this.#pinnedBytes);
    this.#kept += owner.kept.size - before;
  }

  /** Returns false if the pin certainly does not contain the node, true if it may. */
  mayHave({ group: { owner, stacks } }: Pin, node: NodeId): boolean {
    return (stacks ?? owner.leased).has(node);
  }

  /** Returns the owner's pin of this kind on the node that expires first, or null. */
  endsFirst(kind: "pin" | "retain", owner: string, node: NodeId): Pin | null {
    const known = this.#owners.get(owner);
    const stack = (kind === "pin" ? known?.pins : known?.retains)?.stacks?.get(node);
    if (stack === undefined) return null;
    // Skip ended pins, whose blocks may still be in the process of being released.
    if (Array.isArray(stack)) return stack.findLast(({ ended }) => !ended) ?? null;
    return stack.ended ? null : stack;
  }

  /** Returns the owners and leases that pin the node, at most `max` entries. */
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

/** Returns whether a pin or lease of the owner contains the node itself. */
function isKeptBy({ pins, leased }: Owner, node: NodeId): boolean {
  return leased.has(node) || pins.stacks!.has(node);
}

function newOwner(name: string): Owner {
  const owner = { name, leased: new Map(), kept: new OwnerPinnedBytes(), holds: 0 };
  const group = (kind: PinKind) => ({ by: { kind, owner: name }, owner, stacks: new Map() });
  return Object.assign(owner, { pins: group("pin"), retains: group("retain") }) as Owner;
}

/** Adds the pin to the node's stack. Returns true if the stack was empty before. */
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

/** Removes the pin from the node's stack. Returns true if the stack is empty now. */
function removeFromStack(stacks: Map<NodeId, PinStack>, node: NodeId, pin: Pin): boolean {
  const stack = stacks.get(node);
  if (!Array.isArray(stack)) {
    assert(stack === pin, "a pin that leaves a block was on it");
    stacks.delete(node);
    return true;
  }
  const at = placeInStack(stack, pin);
  assert(stack[at] === pin, "a pin that leaves a block was on it");
  if (at === stack.length - 1) stack.pop();
  else stack.splice(at, 1);
  if (stack.length === 1) stacks.set(node, stack[0]);
  return false;
}

/**
 * Returns whether `a` is unpinned before `b`: the pin that expires first, and of two with the same
 * deadline the newer one.
 */
function endsBefore(a: Pin, b: Pin): boolean {
  const endA = a.deadlineBootMs ?? Infinity;
  const endB = b.deadlineBootMs ?? Infinity;
  return endA === endB ? a.id > b.id : endA < endB;
}

/** Returns the index of the pin in the stack, or the index at which to insert it. */
function placeInStack(stack: readonly Pin[], pin: Pin): number {
  let high = stack.length;
  // Fast path: the pin is usually the newest of those without a deadline.
  const last = stack[high - 1];
  if (last === pin) return high - 1;
  if (endsBefore(pin, last)) return high;
  let low = 0;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (endsBefore(pin, stack[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}
