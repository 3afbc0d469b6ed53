import { assert, type NodeId } from "../core/index.ts";
import { type ArenaLimits, arenaLimits, extentBytesFor, roundUp } from "./arena-geometry.ts";
import { ExtentLists } from "./extent-lists.ts";
import {
  NO_SLOT,
  type SizeClass,
  type SlotAllocator,
  type SlotAllocatorOptions,
  SlotState,
} from "./slot-allocator.ts";
import { verifySlots } from "./slot-integrity.ts";
import { SLOT_WORDS, SlotWord } from "./slot-records.ts";

/** Takes address space for the records of all slots at once; memory as slots come into use. */
export function createSlotAllocator(options: SlotAllocatorOptions): SlotAllocator {
  const { arenaBytes, slotBytesMax, extentBytes } = options;
  assert(arenaBytes >= 4096 && slotBytesMax >= 1, "an arena holds at least a slot");
  assert(slotBytesMax <= arenaBytes, "the longest slot fits the arena");
  return new ExtentSlots(arenaLimits(arenaBytes, slotBytesMax, extentBytes));
}

/**
 * A slot's number is 1 + extent × `stride` + its place in the extent, so that everything about it
 * is found by arithmetic. Extents below `unopened` have been in use; those of them in no class wait
 * in a list.
 */
export class ExtentSlots implements SlotAllocator {
  readonly limits: ArenaLimits;
  readonly records: Int32Array;
  readonly extents: ExtentLists;
  readyBytes = 0;
  usedSlots = 0;
  usedBytes = 0;
  quarantinedSlots = 0;
  extentBytes = 0;
  extentCount = 0;
  stride = 0;
  unopened = 0;
  private lastGeneration = 0;

  constructor(limits: ArenaLimits) {
    const slots = limits.arenaBytes / limits.granule + limits.extentsMax + 1;
    this.limits = limits;
    this.records = new Int32Array(new ArrayBuffer(slots * SLOT_WORDS * 4));
    this.extents = new ExtentLists(limits.extentsMax);
  }

  get arenaBytes(): number {
    return this.limits.arenaBytes;
  }

  addReady(bytes: number): void {
    assert(bytes >= 0, "memory only becomes ready");
    this.readyBytes = Math.min(this.arenaBytes, this.readyBytes + bytes);
  }

  reserve(bytes: number): number {
    const { extents, records } = this;
    const slotBytes = roundUp(bytes, this.limits.granule);
    if (slotBytes > this.limits.slotBytesMax) return NO_SLOT;
    if (this.usedSlots === 0) this.divide(slotBytes);
    const sizeClass = extents.classFor(slotBytes);
    if (sizeClass < 0) return NO_SLOT;
    let extent = extents.fullest(sizeClass);
    if (extent < 0) {
      extent = this.openExtent(slotBytes);
      if (extent < 0) return NO_SLOT;
      extents.assign(extent, sizeClass, this.capacity(extent, slotBytes));
    }

    let slot = extents.firstFree[extent]!;
    if (slot !== NO_SLOT)
      extents.firstFree[extent] = records[slot * SLOT_WORDS + SlotWord.nextFree]!;
    else slot = 1 + extent * this.stride + extents.takeFresh(extent);
    const record = slot * SLOT_WORDS;
    this.lastGeneration = (this.lastGeneration + 1) >>> 0 || 1;
    records[record + SlotWord.node] = 0;
    records[record + SlotWord.generation] = this.lastGeneration;
    records[record + SlotWord.state] = SlotState.reserved;
    extents.changeUsed(extent, 1);
    extents.unmovable[extent] = extents.unmovable[extent]! + 1;
    this.usedSlots++;
    this.usedBytes += slotBytes;
    return slot;
  }

  publish(slot: number): void {
    this.changeState(slot, SlotState.reserved, SlotState.live);
    this.changeUnmovable(slot, -1);
  }

  release(slot: number): void {
    const state = this.stateOf(slot);
    assert(state === SlotState.reserved || state === SlotState.live, "a slot released is held");
    if (state === SlotState.reserved) this.changeUnmovable(slot, -1);
    this.free(slot);
  }

  quarantine(slot: number): void {
    const state = this.stateOf(slot);
    assert(state === SlotState.reserved || state === SlotState.live, "a slot quarantined is held");
    if (state === SlotState.live) this.changeUnmovable(slot, 1);
    this.changeState(slot, state, SlotState.quarantined);
    this.records[slot * SLOT_WORDS + SlotWord.node] = 0;
    this.quarantinedSlots++;
  }

  bury(slot: number): void {
    assert(this.stateOf(slot) === SlotState.quarantined, "a slot buried was quarantined");
    this.changeUnmovable(slot, -1);
    this.quarantinedSlots--;
    this.free(slot);
  }

  isCurrent(slot: number, generation: number): boolean {
    const record = slot * SLOT_WORDS;
    const state = this.records[record + SlotWord.state];
    if (state === undefined || state === SlotState.free) return false;
    return this.records[record + SlotWord.generation]! >>> 0 === generation;
  }

  stateOf(slot: number): SlotState {
    return (this.records[slot * SLOT_WORDS + SlotWord.state] ?? SlotState.free) as SlotState;
  }

  generationOf(slot: number): number {
    return this.records[slot * SLOT_WORDS + SlotWord.generation]! >>> 0;
  }

  slotBytesFor(bytes: number): number {
    return roundUp(bytes, this.limits.granule);
  }

  offsetOf(slot: number): number {
    const extent = this.extentOf(slot);
    const place = slot - 1 - extent * this.stride;
    return extent * this.extentBytes + place * this.extents.slotBytesOf(extent);
  }

  slotBytesOf(slot: number): number {
    return this.extents.slotBytesOf(this.extentOf(slot));
  }

  nodeOf(slot: number): NodeId {
    return this.records[slot * SLOT_WORDS + SlotWord.node] as NodeId;
  }

  setNode(slot: number, node: NodeId): void {
    const state = this.stateOf(slot);
    assert(state === SlotState.reserved || state === SlotState.live, "a slot with a block is held");
    this.records[slot * SLOT_WORDS + SlotWord.node] = node;
  }

  freeSlots(bytes: number): number {
    const { extents, limits } = this;
    const slotBytes = roundUp(bytes, limits.granule);
    if (slotBytes > limits.slotBytesMax) return 0;
    if (this.usedSlots === 0) return this.slotsOfEmpty(slotBytes);
    if (!extents.hasClassFor(slotBytes)) return 0;
    const open = this.openCount();
    const last = this.extentCount - 1;
    const lastIsShort = this.bytesOfExtent(last) < this.extentBytes;
    const lastIsFree = last < open && extents.classOf[last] === -1;
    const whole = open - extents.assigned - (lastIsFree && lastIsShort ? 1 : 0);
    const inLast = lastIsFree && lastIsShort ? this.capacity(last, slotBytes) : 0;
    return extents.freeInClass(slotBytes) + whole * this.capacity(0, slotBytes) + inLast;
  }

  extentOf(slot: number): number {
    return Math.floor((slot - 1) / this.stride);
  }

  cheapestExtent(bytes: number, after = -1): number {
    const { extents } = this;
    const slotBytes = roundUp(bytes, this.limits.granule);
    const floor = after < 0 ? -1 : extents.usedBytesOf(after);
    let best = -1;
    let bestBytes = Number.POSITIVE_INFINITY;
    for (let extent = 0; extent < this.unopened; extent++) {
      if (extents.classOf[extent] === -1 || extents.unmovable[extent] !== 0) continue;
      if (extents.slotBytesOf(extent) === slotBytes) continue;
      if (this.bytesOfExtent(extent) < slotBytes) continue;
      const used = extents.usedBytesOf(extent);
      if (used < floor || (used === floor && extent <= after) || used >= bestBytes) continue;
      best = extent;
      bestBytes = used;
    }
    return best;
  }

  nextUsedSlot(extent: number, slot: number): number {
    const first = 1 + extent * this.stride;
    const end = first + this.extents.fresh[extent]!;
    for (let next = slot === NO_SLOT ? first : slot + 1; next < end; next++) {
      if (this.stateOf(next) !== SlotState.free) return next;
    }
    return NO_SLOT;
  }

  classes(): SizeClass[] {
    return this.extents.classes();
  }

  verifyIntegrity(): void {
    verifySlots(this);
  }

  /** Extents whose bytes are all ready: they may be used. */
  openCount(): number {
    if (this.readyBytes === this.arenaBytes) return this.extentCount;
    return Math.floor(this.readyBytes / this.extentBytes);
  }

  bytesOfExtent(extent: number): number {
    return Math.min(this.extentBytes, this.arenaBytes - extent * this.extentBytes);
  }

  /** Slots of this length an extent has room for. */
  capacity(extent: number, slotBytes: number): number {
    return Math.floor(this.bytesOfExtent(extent) / slotBytes);
  }

  /** Cuts the arena, which is empty, into extents that this slot divides. */
  private divide(slotBytes: number): void {
    const extentBytes = extentBytesFor(this.limits, slotBytes);
    if (extentBytes === this.extentBytes) return;
    this.extentBytes = extentBytes;
    this.extentCount = Math.ceil(this.arenaBytes / extentBytes);
    this.stride = extentBytes / this.limits.granule;
    this.unopened = 0;
    this.extents.reset();
  }

  /** What `freeSlots` is where the next reservation divides the arena anew. */
  private slotsOfEmpty(slotBytes: number): number {
    const extentBytes = extentBytesFor(this.limits, slotBytes);
    // All extents but the last are whole multiples of the slot.
    if (this.readyBytes === this.arenaBytes) return Math.floor(this.arenaBytes / slotBytes);
    return Math.floor(this.readyBytes / extentBytes) * (extentBytes / slotBytes);
  }

  /** An extent in no class that has room for such a slot, or -1. */
  private openExtent(slotBytes: number): number {
    const last = this.extentCount - 1;
    const unfit = this.bytesOfExtent(last) < slotBytes ? last : -1;
    const returned = this.extents.takeReturned(unfit);
    if (returned >= 0) return returned;
    const fresh = this.unopened;
    if (fresh >= this.openCount() || fresh === unfit) return -1;
    this.unopened++;
    return fresh;
  }

  private changeState(slot: number, from: SlotState, to: SlotState): void {
    assert(this.stateOf(slot) === from, "a slot changes from the state it is in");
    this.records[slot * SLOT_WORDS + SlotWord.state] = to;
  }

  private changeUnmovable(slot: number, by: number): void {
    const { unmovable } = this.extents;
    const extent = this.extentOf(slot);
    unmovable[extent] = unmovable[extent]! + by;
  }

  private free(slot: number): void {
    const { extents, records } = this;
    const extent = this.extentOf(slot);
    const record = slot * SLOT_WORDS;
    records[record + SlotWord.state] = SlotState.free;
    records[record + SlotWord.node] = 0;
    records[record + SlotWord.nextFree] = extents.firstFree[extent]!;
    extents.firstFree[extent] = slot;
    this.usedSlots--;
    this.usedBytes -= extents.slotBytesOf(extent);
    extents.changeUsed(extent, -1);
    if (extents.used[extent] === 0) extents.giveBack(extent);
  }
}
