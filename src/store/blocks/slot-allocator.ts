import { assert, type NodeId } from "../../core/index.ts";
import { ANY_ZONE, ExtentLists } from "./extent-lists.ts";

export const SLOT_ALIGN = 4096;
/** Maximum number of zones. A zone is a part of the arena that a caller of `reserve` can prefer. */
export const ZONES_MAX = 8;
/** Result of `reserve` if no slot is free. */
export const NO_SLOT = 0;

export const SlotState = { free: 0, reserved: 1, live: 2, quarantined: 3 } as const;
export type SlotState = (typeof SlotState)[keyof typeof SlotState];

export interface SlotAllocatorOptions {
  /** Arena size in bytes. Bytes after the last multiple of 4096 are not used. */
  readonly arenaBytes: number;
  /** Size in bytes of the largest block that the arena must be able to hold. */
  readonly slotBytesMax: number;
  /** Requested extent size in bytes. Default: 1/64 of the arena, at most 64 MiB. */
  readonly extentBytes?: number;
  /**
   * End offset of each zone, ascending. The last one is the end of the arena. Default: one zone.
   */
  readonly zoneEnds?: readonly number[];
}

export interface SizeClass {
  readonly slotBytes: number;
  readonly extents: number;
  /** Number of slots in the extents of the class, and number of slots that are not free. */
  readonly slots: number;
  readonly used: number;
}

/** Positions of the blocks in an arena, by ascending offset in bytes. */
export interface SlotLayout {
  readonly extentBytes: number;
  readonly offsets: Float64Array;
  /** Length of each block in bytes; one entry per offset. */
  readonly bytes: Uint32Array;
}

interface Extent {
  slotBytes: number;
  /** Indexes of the extent's blocks in the layout, ascending. */
  readonly entries: number[];
}

function zoneEndsOf({ arenaBytes, zoneEnds = [arenaBytes] }: SlotAllocatorOptions): number[] {
  assert(zoneEnds.length > 0 && zoneEnds.length <= ZONES_MAX, "an arena has one zone to eight");
  assert(zoneEnds.at(-1) === arenaBytes, "zones cover the arena");
  for (const [i, end] of zoneEnds.entries())
    assert(end > (zoneEnds[i - 1] ?? 0), "zones follow each other");
  return [...zoneEnds];
}

/**
 * Divides the RAM arena into slots. The arena is cut into extents of equal size (the last may be
 * shorter). An extent belongs to one size class or to none. The slots of a class are as long as its
 * blocks, rounded up to 4096. Guarantees:
 *
 * - If nothing is allocated, the next `reserve` chooses the extent size anew, as a multiple of its
 *   own slot size. So an arena of N slots holds exactly N blocks as long as one size is in use.
 *   Another class loses less than one of its slots at the end of each of its extents.
 * - An extent whose slots are all free belongs to no class. Slots come from the fullest extents of
 *   the class (to an eighth), so that the others empty. If a zone is requested, its extents come
 *   first, including extents that have to be opened, and then those of any zone.
 * - A slot number is unique among the slots in use. A generation is unique among the last 2^32
 *   reservations of all slots. Neither is reused before `release`. Only `bury` releases a
 *   quarantined slot.
 * - No call waits. No call except `classes` and `restore` allocates memory. `reserve`,
 *   `publish`, `release`, `quarantine` and `bury` take constant time.
 *
 * The allocator itself uses 20 bytes per slot, for the largest number of slots that ever existed at
 * once. In an arena above 512 GiB, slots are aligned to the power of two at or above arena / 2^27,
 * and at least as long, instead of 4096.
 *
 * Extents of a zone below its mark in `unopened` have been in use; those of them without a class
 * are in a list. The place of a slot is its offset in granules. The slots of an extent form a
 * chain, newest first.
 */
export class SlotAllocator {
  readonly limits: ArenaLimits;
  readonly records: SlotRecords;
  readonly extents: ExtentLists;
  readyBytes = 0;
  /** Number of slots that are not free, their bytes, and number of quarantined slots. */
  usedSlots = 0;
  usedBytes = 0;
  quarantinedSlots = 0;
  /** Size of an extent in bytes; 0 before the first reservation. */
  extentBytes = 0;
  /** Number of extents. 0 before the first reservation. */
  extentCount = 0;
  /**
   * Per zone: the first extent that was never in use, and the extent after the last one of the
   * zone.
   */
  readonly unopened: Int32Array;
  readonly zoneStop: Int32Array;
  readonly #zoneEnds: readonly number[];
  private lastGeneration = 0;

  /**
   * Reserves address space for the records of all slots. Physical memory is used only for slots
   * that come into use.
   */
  constructor(options: SlotAllocatorOptions) {
    const { arenaBytes, slotBytesMax } = options;
    assert(arenaBytes >= 4096 && slotBytesMax >= 1, "an arena holds at least a slot");
    assert(slotBytesMax <= arenaBytes, "the longest slot fits the arena");
    const limits = arenaLimits(options);
    const ends = zoneEndsOf(options);
    this.limits = limits;
    this.#zoneEnds = ends;
    this.records = new SlotRecords(limits.arenaBytes / limits.granule);
    this.extents = new ExtentLists(limits.extentsMax, ends.length);
    this.unopened = new Int32Array(ends.length);
    this.zoneStop = new Int32Array(ends.length);
  }

  get arenaBytes(): number {
    return this.limits.arenaBytes;
  }

  /**
   * Reports that `bytes` more of the arena are backed by memory. An extent can be used when all its
   * bytes are.
   */
  addReady(bytes: number): void {
    assert(bytes >= 0, "memory only becomes ready");
    this.readyBytes = Math.min(this.arenaBytes, this.readyBytes + bytes);
  }

  /**
   * Reserves a slot of at least `bytes`. Returns NO_SLOT if none is free or `bytes` exceeds
   * `slotBytesMax`. `zone`: preferred zone; other zones are used if it is full.
   */
  reserve(bytes: number, zone: number = ANY_ZONE): number {
    const { extents, records } = this;
    const slotBytes = this.slotBytesFor(bytes);
    if (slotBytes > this.limits.slotBytesMax) return NO_SLOT;
    if (this.usedSlots === 0) this.divide(slotBytes);
    const sizeClass = extents.classFor(slotBytes);
    if (sizeClass < 0) return NO_SLOT;
    let extent = this.extentWithRoom(sizeClass, slotBytes, zone);
    if (extent < 0 && zone !== ANY_ZONE) {
      extent = this.extentWithRoom(sizeClass, slotBytes, ANY_ZONE);
    }
    if (extent < 0) return NO_SLOT;

    let slot = extents.firstFree[extent];
    if (slot !== NO_SLOT) extents.firstFree[extent] = records.linkOf(slot);
    else slot = this.takeFresh(extent, slotBytes);
    return this.handOut(slot, extent, slotBytes);
  }

  /**
   * Returns an extent of the class in the zone with a free slot. Opens an extent if necessary. -1:
   * none.
   */
  private extentWithRoom(sizeClass: number, slotBytes: number, zone: number): number {
    const fullest = this.extents.fullest(sizeClass, zone);
    if (fullest >= 0) return fullest;
    const opened = this.openExtent(slotBytes, zone);
    if (opened >= 0) this.extents.assign(opened, sizeClass, this.capacity(opened, slotBytes));
    return opened;
  }

  private handOut(slot: number, extent: number, slotBytes: number): number {
    const { extents, records } = this;
    this.lastGeneration = (this.lastGeneration + 1) >>> 0 || 1;
    records.setLink(slot, 0);
    records.setGeneration(slot, this.lastGeneration);
    records.setState(slot, SlotState.reserved);
    extents.changeUsed(extent, 1);
    extents.unmovable[extent] = extents.unmovable[extent] + 1;
    this.usedSlots++;
    this.usedBytes += slotBytes;
    return slot;
  }

  /** Publishes a slot: `reserved` becomes `live`. */
  publish(slot: number): void {
    this.changeState(slot, SlotState.reserved, SlotState.live);
    this.changeUnmovable(slot, -1);
  }

  /** Frees a slot: `reserved` or `live` becomes `free`. */
  release(slot: number): void {
    const state = this.stateOf(slot);
    assert(state === SlotState.reserved || state === SlotState.live, "a released slot is in use");
    assert(this.records.referencesOf(slot) === 0, "a released slot has no reference");
    if (state === SlotState.reserved) this.changeUnmovable(slot, -1);
    this.free(slot);
  }

  /**
   * Makes a slot unavailable: `reserved` or `live` becomes `quarantined`, because an engine or
   * device may still access its bytes. Clears the slot's node.
   */
  quarantine(slot: number): void {
    const state = this.stateOf(slot);
    assert(
      state === SlotState.reserved || state === SlotState.live,
      "a quarantined slot is in use",
    );
    if (state === SlotState.live) this.changeUnmovable(slot, 1);
    this.changeState(slot, state, SlotState.quarantined);
    this.records.setLink(slot, 0);
    this.quarantinedSlots++;
  }

  /** Frees a quarantined slot. */
  bury(slot: number): void {
    assert(this.stateOf(slot) === SlotState.quarantined, "a buried slot is quarantined");
    this.changeUnmovable(slot, -1);
    this.quarantinedSlots--;
    this.free(slot);
  }

  /**
   * Frees a live slot whose bytes are damaged. While readers hold references, the slot is
   * `quarantined` instead, and dropping the last reference frees it. Clears the slot's node.
   */
  condemn(slot: number): void {
    assert(this.stateOf(slot) === SlotState.live, "a condemned slot is live");
    if (this.records.referencesOf(slot) === 0) this.release(slot);
    else this.quarantine(slot);
  }

  /** Adds a reference to a `live` slot. The slot must not be released before `dropReference`. */
  addReference(slot: number): void {
    assert(this.stateOf(slot) === SlotState.live, "a slot with a reference is live");
    this.records.changeReferences(slot, 1);
  }

  dropReference(slot: number): void {
    const { records } = this;
    assert(records.referencesOf(slot) > 0, "a dropped reference was added");
    records.changeReferences(slot, -1);
    if (records.referencesOf(slot) > 0) return;
    if (this.stateOf(slot) === SlotState.quarantined) this.bury(slot);
  }

  /** Returns whether the slot is in use and has this generation. Accepts any integers. */
  isCurrent(slot: number, generation: number): boolean {
    return this.stateOf(slot) !== SlotState.free && this.records.generationOf(slot) === generation;
  }

  stateOf(slot: number): SlotState {
    return this.records.stateOf(slot);
  }

  generationOf(slot: number): number {
    return this.records.generationOf(slot);
  }

  /** Returns the capacity in bytes of the slot that `reserve(bytes)` would return. */
  slotBytesFor(bytes: number): number {
    return roundUp(bytes, this.limits.granule);
  }

  /** Returns the byte offset of the slot in the arena. */
  offsetOf(slot: number): number {
    return this.records.placeOf(slot) * this.limits.granule;
  }

  /** Returns the capacity of the slot in bytes. */
  slotBytesOf(slot: number): number {
    return this.extents.slotBytesOf(this.extentOf(slot));
  }

  /** Returns the node whose block is in the slot, or NO_NODE if none was set. */
  nodeOf(slot: number): NodeId {
    return this.records.linkOf(slot) as NodeId;
  }

  setNode(slot: number, node: NodeId): void {
    const state = this.stateOf(slot);
    assert(
      state === SlotState.reserved || state === SlotState.live,
      "a slot with a node is in use",
    );
    this.records.setLink(slot, node);
  }

  extentOf(slot: number): number {
    return Math.floor(this.offsetOf(slot) / this.extentBytes);
  }

  /**
   * Returns the extent of another class that could hold a slot of `bytes` and has the fewest bytes
   * in use, so that it is the cheapest to empty. -1: none. Leaves out extents with reserved or
   * quarantined slots, which cannot be emptied now. `after`: an extent returned earlier; the result
   * is the next one in the same order. Takes time linear in the number of extents.
   */
  cheapestExtent(bytes: number, after = -1): number {
    const { extents } = this;
    const slotBytes = this.slotBytesFor(bytes);
    const floor = after < 0 ? -1 : extents.usedBytesOf(after);
    let best = -1;
    let bestBytes = Number.POSITIVE_INFINITY;
    for (let extent = 0; extent < this.extentCount; extent++) {
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

  /**
   * Returns the next slot in use after `slot` within the extent, or NO_SLOT after the last one.
   * Pass NO_SLOT to get the first.
   */
  nextUsedSlot(extent: number, slot: number): number {
    const { extents, records } = this;
    if (extents.classOf[extent] === -1) return NO_SLOT;
    let next = slot === NO_SLOT ? extents.newest[extent] : records.nextOf(slot);
    while (next !== NO_SLOT && this.stateOf(next) === SlotState.free) next = records.nextOf(next);
    return next;
  }

  /** Returns figures of the size classes, for metrics. */
  classes(): SizeClass[] {
    return this.extents.classes();
  }

  /** Returns the number of extents whose bytes are all backed by memory. Only these may be used. */
  openCount(): number {
    if (this.readyBytes === this.arenaBytes) return this.extentCount;
    return Math.floor(this.readyBytes / this.extentBytes);
  }

  bytesOfExtent(extent: number): number {
    return Math.min(this.extentBytes, this.arenaBytes - extent * this.extentBytes);
  }

  /** Returns the number of slots of this length that fit into the extent. */
  capacity(extent: number, slotBytes: number): number {
    return Math.floor(this.bytesOfExtent(extent) / slotBytes);
  }

  /** Divides an empty arena into extents whose size is a multiple of this slot length. */
  private divide(slotBytes: number): void {
    const extentBytes = extentBytesFor(this.limits, slotBytes);
    if (extentBytes !== this.extentBytes) this.divideInto(extentBytes);
  }

  /**
   * Recreates a layout in an unused arena of the same size that is fully backed by memory. Returns
   * the reserved slot of each entry, or null if the layout does not fit. After null the caller must
   * discard the arena, unless nothing was reserved.
   */
  restore(layout: SlotLayout): Int32Array | null {
    if (this.usedSlots > 0 || this.readyBytes !== this.arenaBytes) return null;
    const extents = this.extentsOf(layout);
    if (extents === null) return null;
    const restored = new Int32Array(layout.offsets.length);
    const spare: number[] = [];
    this.divideInto(layout.extentBytes);
    const last = Math.max(-1, ...extents.keys());
    for (let number = 0; number <= last; number++) {
      // Open and close extents without blocks too, because extents must be opened in order.
      const { slotBytes, entries } = extents.get(number) ?? { slotBytes: 0, entries: [] };
      const unit = slotBytes === 0 ? this.limits.granule : slotBytes;
      if (!this.openNext(number, unit)) return null;
      let next = number * layout.extentBytes;
      for (const entry of entries) {
        for (; next < layout.offsets[entry]; next += unit) spare.push(this.takeNext(number, unit));
        restored[entry] = this.takeNext(number, unit);
        next += unit;
      }
      if (entries.length === 0) spare.push(this.takeNext(number, unit));
    }
    for (const slot of spare) this.release(slot);
    return restored;
  }

  /**
   * Returns the extents that contain blocks of the layout, by extent number. Null if the layout is
   * invalid.
   */
  private extentsOf(layout: SlotLayout): Map<number, Extent> | null {
    const { extentBytes, offsets, bytes } = layout;
    const { granule, arenaBytes, slotBytesMax, extentBytesMin } = this.limits;
    if (extentBytes < extentBytesMin || extentBytes % granule !== 0) return null;
    const extents = new Map<number, Extent>();
    let end = 0;
    for (let i = 0; i < offsets.length; i++) {
      const offset = offsets[i];
      const slotBytes = this.slotBytesFor(bytes[i]);
      const number = Math.floor(offset / extentBytes);
      const extent = extents.get(number) ?? { slotBytes, entries: [] };
      const inExtent = offset - number * extentBytes;
      const within = inExtent + slotBytes <= extentBytes && offset + slotBytes <= arenaBytes;
      const right = within && offset >= end && inExtent % slotBytes === 0;
      if (!right || bytes[i] === 0 || slotBytes > slotBytesMax) return null;
      if (extent.slotBytes !== slotBytes) return null;
      end = offset + slotBytes;
      extent.entries.push(i);
      extents.set(number, extent);
    }
    return extents;
  }

  /**
   * Opens this extent for slots of this length. It must be the first unopened extent of its zone.
   * Returns false if the class cannot be created or the extent cannot be used.
   */
  private openNext(extent: number, slotBytes: number): boolean {
    const sizeClass = this.extents.classFor(slotBytes);
    if (sizeClass < 0 || extent >= this.extentCount) return false;
    const zone = this.extents.zoneOf[extent];
    assert(this.unopened[zone] === extent, "the extents of a zone are opened in their order");
    this.unopened[zone] = extent + 1;
    this.extents.assign(extent, sizeClass, this.capacity(extent, slotBytes));
    return true;
  }

  /** Reserves the next slot of the extent that was never handed out. */
  private takeNext(extent: number, slotBytes: number): number {
    return this.handOut(this.takeFresh(extent, slotBytes), extent, slotBytes);
  }

  /** Divides an empty arena into extents of this size in bytes. */
  private divideInto(extentBytes: number): void {
    this.extentBytes = extentBytes;
    this.extentCount = Math.ceil(this.arenaBytes / extentBytes);
    this.extents.reset();
    let first = 0;
    for (const [zone, end] of this.#zoneEnds.entries()) {
      // An extent that crosses the border between two zones belongs to the first one.
      const stop = Math.min(this.extentCount, Math.ceil(end / extentBytes));
      this.unopened[zone] = first;
      this.zoneStop[zone] = stop;
      this.extents.zoneOf.fill(zone, first, stop);
      first = stop;
    }
  }

  /**
   * Opens an extent of the zone that has no class and has room for the slot. Returns -1 if there is
   * none.
   */
  private openExtent(slotBytes: number, zone: number): number {
    const last = this.extentCount - 1;
    const unfit = this.bytesOfExtent(last) < slotBytes ? last : -1;
    const [from, to] = zone === ANY_ZONE ? [0, this.extents.zones] : [zone, zone + 1];
    for (let at = from; at < to; at++) {
      const returned = this.extents.takeReturned(unfit, at);
      if (returned >= 0) return returned;
    }
    for (let at = from; at < to; at++) {
      const fresh = this.unopened[at];
      if (fresh >= Math.min(this.zoneStop[at], this.openCount()) || fresh === unfit) continue;
      this.unopened[at] = fresh + 1;
      return fresh;
    }
    return -1;
  }

  /** Creates the record of the next slot of the extent that was never handed out. */
  private takeFresh(extent: number, slotBytes: number): number {
    const { extents, records, limits } = this;
    const offset = extent * this.extentBytes + extents.fresh[extent] * slotBytes;
    const slot = records.take(offset / limits.granule, extents.newest[extent]);
    extents.addFresh(extent, slot);
    return slot;
  }

  private changeState(slot: number, from: SlotState, to: SlotState): void {
    assert(this.stateOf(slot) === from, "a slot changes from the state it is in");
    this.records.setState(slot, to);
  }

  private changeUnmovable(slot: number, by: number): void {
    const { unmovable } = this.extents;
    const extent = this.extentOf(slot);
    unmovable[extent] = unmovable[extent] + by;
  }

  private free(slot: number): void {
    const { extents, records } = this;
    const extent = this.extentOf(slot);
    records.setState(slot, SlotState.free);
    records.setLink(slot, extents.firstFree[extent]);
    extents.firstFree[extent] = slot;
    this.usedSlots--;
    this.usedBytes -= extents.slotBytesOf(extent);
    extents.changeUsed(extent, -1);
    if (extents.used[extent] !== 0) return;
    records.give(extents.newest[extent], extents.eldest[extent]);
    extents.giveBack(extent);
  }
}

/**
 * 32-bit words of a slot record: the node (for a free slot: the next free slot of the extent); the
 * generation; the next slot of the extent (or the next record in the pool); the state, with the
 * place in the arena.
 */
const WORDS = 4;
const NODE = 0;
const GENERATION = 1;
const NEXT = 2;
const PLACE = 3;
const STATE_SHIFT = 28;
const PLACE_MASK = 2 ** STATE_SHIFT - 1;

/**
 * Slot records of 16 bytes, four to a cache line. The number of a slot is the number of its record,
 * from 1. Records of extents that left their class go to a pool of free records. The numbers in use
 * therefore stay dense for any slot length, and memory use follows the number of slots even if the
 * kernel allocates huge pages.
 */
class SlotRecords {
  readonly max: number;
  /** Highest record number that was ever in use. */
  highest = 0;
  pool = 0;
  private readonly words: Int32Array;
  /** Number of references to each slot. A slot with references keeps its bytes in place. */
  private readonly references: Int32Array;

  constructor(max: number) {
    this.max = max;
    this.words = new Int32Array(new ArrayBuffer((max + 1) * WORDS * 4));
    this.references = new Int32Array(new ArrayBuffer((max + 1) * 4));
  }

  /**
   * Creates the record of a free slot at `place` (its offset in granules). `next`: the slot that
   * follows it in the chain of its extent.
   */
  take(place: number, next: number): number {
    let slot = this.pool;
    if (slot === 0) slot = ++this.highest;
    else this.pool = this.nextOf(slot);
    this.words[slot * WORDS + NODE] = 0;
    this.words[slot * WORDS + NEXT] = next;
    this.words[slot * WORDS + PLACE] = place;
    return slot;
  }

  /**
   * Returns the records of the chain from slot `first` to slot `last` to the pool. All these slots
   * must be free.
   */
  give(first: number, last: number): void {
    this.words[last * WORDS + NEXT] = this.pool;
    this.pool = first;
  }

  nextOf(slot: number): number {
    return this.words[slot * WORDS + NEXT];
  }

  placeOf(slot: number): number {
    return this.words[slot * WORDS + PLACE] & PLACE_MASK;
  }

  /** Returns the state of a slot; `free` for a number that no slot has. */
  stateOf(slot: number): SlotState {
    return ((this.words[slot * WORDS + PLACE] ?? SlotState.free) >>> STATE_SHIFT) as SlotState;
  }

  setState(slot: number, state: SlotState): void {
    this.words[slot * WORDS + PLACE] = this.placeOf(slot) | (state << STATE_SHIFT);
  }

  generationOf(slot: number): number {
    return this.words[slot * WORDS + GENERATION] >>> 0;
  }

  setGeneration(slot: number, generation: number): void {
    this.words[slot * WORDS + GENERATION] = generation;
  }

  /** Returns the node of a slot in use; for a free slot, the next free slot of its extent. */
  linkOf(slot: number): number {
    return this.words[slot * WORDS + NODE];
  }

  setLink(slot: number, to: number): void {
    this.words[slot * WORDS + NODE] = to;
  }

  referencesOf(slot: number): number {
    return this.references[slot];
  }

  changeReferences(slot: number, by: number): void {
    this.references[slot] = this.references[slot] + by;
  }
}

const EXTENT_BYTES = 64 * 2 ** 20;
const EXTENTS_WANTED = 64;
/** Maximum number of slots of an arena. Slot numbers and records must fit into typed arrays. */
const GRANULES_MAX = 2 ** 27;

type ArenaLimits = ReturnType<typeof arenaLimits>;

function arenaLimits({ arenaBytes, slotBytesMax, extentBytes }: SlotAllocatorOptions) {
  let granule = SLOT_ALIGN;
  while (arenaBytes / granule > GRANULES_MAX) granule *= 2;
  const usable = Math.floor(arenaBytes / granule) * granule;
  const longest = roundUp(slotBytesMax, granule);
  const wanted = extentBytes ?? Math.min(EXTENT_BYTES, usable / EXTENTS_WANTED);
  const extentBytesMin = Math.max(roundUp(wanted, granule), longest);
  return {
    /** Usable bytes of the arena, a multiple of `granule`. */
    arenaBytes: usable,
    /** Unit of slot sizes in bytes: 4096, or more in arenas above 512 GiB. */
    granule,
    slotBytesMax: longest,
    /** Minimum size of an extent in bytes. */
    extentBytesMin,
    extentsMax: Math.ceil(usable / extentBytesMin),
  };
}

/**
 * Returns the extent size for an empty arena whose first slot has this length: the smallest
 * multiple of the slot length that is at least `extentBytesMin`.
 */
function extentBytesFor(limits: ArenaLimits, slotBytes: number): number {
  return Math.ceil(limits.extentBytesMin / slotBytes) * slotBytes;
}

function roundUp(bytes: number, to: number): number {
  return Math.max(1, Math.ceil(bytes / to)) * to;
}
