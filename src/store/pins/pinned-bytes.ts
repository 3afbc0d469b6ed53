import { assert, type HeldBy, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import type { Pin } from "./pin-table.ts";
import type { PinKind } from "./pins.ts";

/**
 * Counts the bytes that only soft pins keep. The block table knows that a block is kept, but not by
 * which kind of pin, and the budget for pins and leases must not include blocks kept by soft pins
 * alone. For each kind (hard: pins and leases; soft: soft pins) the class counts, per node, its
 * pins plus its children that are kept by that kind. The kind keeps the node while the count is
 * above zero.
 *
 * A node that gets a parent while it is counted is propagated to the parent by the next pin that
 * reaches the node. Until then the parent counts as kept by hard pins, which is the strict side.
 * Memory: one entry per node of the table, touched only when the node is pinned.
 */
export class PinnedBytes {
  readonly #table: BlockTable;
  readonly #hard: Uint32Array;
  readonly #soft: Uint32Array;
  /** The parent whose count includes the node. */
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

  /** Bytes in RAM or on SSD that a soft pin keeps and no pin or lease does. */
  get softOnlyBytes(): number {
    return this.#softOnlyBytes;
  }

  isSoftOnly(node: NodeId): boolean {
    return this.#hard[node] === 0 && this.#soft[node] !== 0;
  }

  /** Size of the block when it was first pinned. The same number is added and later subtracted. */
  bytesOf(node: NodeId): number {
    return this.#bytes[node]!;
  }

  /**
   * The parent whose count includes the node: its parent when it was first pinned, or later when a
   * pin reached the node.
   */
  parentOf(node: NodeId): NodeId {
    return this.#parent[node] as NodeId;
  }

  remove(node: NodeId, isSoft: boolean): void {
    const [counts, parent] = [isSoft ? this.#soft : this.#hard, this.#parent];
    for (let step: number = node; step !== 0; ) {
      assert(counts[step]! > 0, "a pin that ends was counted");
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

  add(node: number, isSoft: boolean): void {
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

  /** The node was counted as a root. Propagates its counts if it has a parent now. */
  #adopt(node: number): void {
    const above = this.#table.parentOf(node as NodeId);
    if (above === 0) return;
    this.#parent[node] = above;
    if (this.#hard[node] !== 0) this.add(above, false);
    if (this.#soft[node] !== 0) this.add(above, true);
  }

  #softOnlyOf(node: number): number {
    return this.#hard[node] === 0 && this.#soft[node] !== 0 ? this.#bytes[node]! : 0;
  }
}

export function isOnTiers(table: BlockTable, node: NodeId): boolean {
  return (table.residencyOf(node) & (Tier.ram | Tier.ssd)) !== 0;
}

/**
 * The blocks that the pins and leases of one owner keep: pinned blocks and their ancestors, each
 * once, whether or not another owner keeps them too. Counts, per block, the owner's pins on it plus
 * its children that the owner keeps. Parents and sizes come from `PinnedBytes`: a block is added
 * there before it is added here, and removed there after it is removed here.
 */
export class OwnerPinnedBytes {
  readonly #counts = new Map<NodeId, number>();
  /** Blocks that were counted as roots. They may have a parent now. */
  readonly roots = new Set<NodeId>();
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  /** Number of blocks kept. */
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

/**
 * The pins of one group on one node, in reverse order of removal: the last one is unpinned first.
 */
type PinStack = Pin | Pin[];

/** One holder of a node: all pins of an owner, all its soft pins, or one lease. */
export interface PinGroup {
  readonly by: HeldBy;
  readonly owner: Owner;
  /** Null for a lease, which contains each block once. */
  readonly stacks: Map<NodeId, PinStack> | null;
}

interface Owner {
  readonly name: string;
  readonly pins: PinGroup;
  readonly retains: PinGroup;
  /** Number of the owner's leases that contain the node. */
  readonly leased: Map<NodeId, number>;
  readonly kept: OwnerPinnedBytes;
  holds: number;
}

/** Finds pins by node and by owner. Does not change pins. */
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

  /** Nodes with at least one pin. */
  get nodes(): number {
    return this.#groups.size;
  }

  hasOwner(name: string): boolean {
    return this.#owners.has(name);
  }

  /**
   * The blocks that the pins and leases of the owner keep. Null if the owner has no pins of any
   * kind.
   */
  keptBy(owner: string): OwnerPinnedBytes | null {
    return this.#owners.get(owner)?.kept ?? null;
  }

  /** Sum over all owners of the blocks that each keeps. */
  get kept(): number {
    return this.#kept;
  }

  /** Registers a new pin and returns its group. */
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

  /** Unregisters a pin without nodes. */
  close({ group: { owner } }: Pin): void {
    if (--owner.holds === 0) this.#owners.delete(owner.name);
  }

  /** Adds a node to the pin. `PinnedBytes` must contain the node already. */
  join(pin: Pin, node: NodeId): void {
    const { group } = pin;
    const { owner, stacks } = group;
    const wasKept = isKeptBy(owner, node);
    if (stacks === null) owner.leased.set(node, (owner.leased.get(node) ?? 0) + 1);
    else if (!addToStack(stacks, node, pin)) return;
    this.#addGroup(node, group);
    if (!wasKept) this.#recount(owner, node, "add");
  }

  /** Removes a node from the pin. `PinnedBytes` must still contain the node. */
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

  /** Call it after a change. Nothing changes for a block that still is, or still is not, kept. */
  #recount(owner: Owner, node: NodeId, change: "add" | "remove"): void {
    if (isKeptBy(owner, node) !== (change === "add")) return;
    const before = owner.kept.size;
    owner.kept[change](node, this.#pinnedBytes);
    this.#kept += owner.kept.size - before;
  }

  /** False if the pin certainly does not contain the node. */
  mayHave({ group: { owner, stacks } }: Pin, node: NodeId): boolean {
    return (stacks ?? owner.leased).has(node);
  }

  /** The owner's pin of this kind on the node that expires first, or null. */
  endsFirst(kind: "pin" | "retain", owner: string, node: NodeId): Pin | null {
    const known = this.#owners.get(owner);
    const stack = (kind === "pin" ? known?.pins : known?.retains)?.stacks?.get(node);
    if (stack === undefined) return null;
    // An ended pin may still be releasing its blocks.
    if (Array.isArray(stack)) return stack.findLast(({ ended }) => !ended) ?? null;
    return stack.ended ? null : stack;
  }

  /** Holders of the node, at most `max`. */
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

/** Whether a pin or lease of the owner contains the node itself. */
function isKeptBy({ pins, leased }: Owner, node: NodeId): boolean {
  return leased.has(node) || pins.stacks!.has(node);
}

function newOwner(name: string): Owner {
  const owner = { name, leased: new Map(), kept: new OwnerPinnedBytes(), holds: 0 };
  const group = (kind: PinKind) => ({ by: { kind, owner: name }, owner, stacks: new Map() });
  return Object.assign(owner, { pins: group("pin"), retains: group("retain") }) as Owner;
}

/** True if the stack was empty before. */
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

/** True if the stack is empty now. */
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
  if (stack.length === 1) stacks.set(node, stack[0]!);
  return false;
}

/** Whether `a` is unpinned before `b`: the one that expires first, then the newer one. */
function endsBefore(a: Pin, b: Pin): boolean {
  const endA = a.deadlineBootMs ?? Infinity;
  const endB = b.deadlineBootMs ?? Infinity;
  return endA === endB ? a.id > b.id : endA < endB;
}

/** Index of the pin in the stack, or the index at which to insert it. */
function placeInStack(stack: readonly Pin[], pin: Pin): number {
  let high = stack.length;
  // Usually the pin is the newest of those without a deadline.
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
