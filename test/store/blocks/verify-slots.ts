import { assert } from "../../../src/core/index.ts";
import {
  CLASSES_MAX,
  EIGHTHS,
  type ExtentLists,
  NO_SLOT,
  type SlotAllocator,
  SlotState,
} from "../../../src/store/blocks/index.ts";

const READ_STAYS = "a slot with a reference is live";

/** Checks every invariant of the allocator. Throws INTERNAL with the first violation. */
export function verifySlots(slots: SlotAllocator): void {
  const { extents, extentCount, limits } = slots;
  assert(slots.readyBytes >= 0 && slots.readyBytes <= limits.arenaBytes, "ready lies in the arena");
  assert(extentCount <= limits.extentsMax, "extents exist");
  verifyZones(slots);
  const totals = { slots: 0, bytes: 0, quarantined: 0 };
  for (let extent = 0; extent < extentCount; extent++) {
    if (extents.classOf[extent] !== -1) verifyExtent(slots, extent, totals);
    else verifyVacant(extents, extent);
  }
  assert(totals.slots === slots.usedSlots, "the slots in use are counted");
  assert(totals.bytes === slots.usedBytes, "the bytes in use are counted");
  assert(totals.quarantined === slots.quarantinedSlots, "the slots in quarantine are counted");
  verifyClasses(extents, extentCount);
  verifyReturned(slots);
  verifyRecords(slots);
}

/** Zones are adjacent, and their extents in use are ready. */
function verifyZones(slots: SlotAllocator): void {
  const { extents, extentCount, unopened, zoneStop } = slots;
  let first = 0;
  for (let zone = 0; zone < extents.zones; zone++) {
    const [mark, stop] = [unopened[zone]!, zoneStop[zone]!];
    assert(first <= mark && mark <= stop, "the extents of a zone in use are its own");
    assert(mark === first || mark <= slots.openCount(), "extents in use are ready");
    for (let extent = first; extent < stop; extent++) {
      assert(extents.zoneOf[extent] === zone, "an extent knows its zone");
    }
    first = stop;
  }
  assert(first === extentCount, "each extent has a zone");
}

/** Whether the extent was ever in use. */
function wasOpened(slots: SlotAllocator, extent: number): boolean {
  return extent < slots.unopened[slots.extents.zoneOf[extent]!]!;
}

function verifyExtent(
  slots: SlotAllocator,
  extent: number,
  totals: { slots: number; bytes: number; quarantined: number },
): void {
  const { extents } = slots;
  const slotBytes = extents.slotBytesOf(extent);
  const fresh = extents.fresh[extent]!;
  assert(wasOpened(slots, extent), "an extent with a class was opened");
  assert(
    extents.capacity[extent] === slots.capacity(extent, slotBytes),
    "an extent has the slots its length allows",
  );
  assert(fresh <= extents.capacity[extent]!, "an extent hands out the slots it has");
  let used = 0;
  let unmovable = 0;
  let chained = 0;
  for (let slot = extents.newest[extent]!; slot !== NO_SLOT; slot = slots.records.nextOf(slot)) {
    assert(++chained <= fresh, "the chain of an extent ends");
    const place = fresh - chained;
    const offset = extent * slots.extentBytes + place * slotBytes;
    assert(slots.offsetOf(slot) === offset, "a slot lies where its turn put it");
    assert((extents.eldest[extent] === slot) === (place === 0), "the first slot ends the chain");
    const state = slots.stateOf(slot);
    if (state !== SlotState.free) used++;
    if (state === SlotState.reserved || state === SlotState.quarantined) unmovable++;
    if (state === SlotState.quarantined) totals.quarantined++;
    const isRead = slots.records.referencesOf(slot) > 0;
    assert(!isRead || state === SlotState.live || state === SlotState.quarantined, READ_STAYS);
  }
  assert(chained === fresh, "the chain of an extent holds its slots");
  assert(used > 0 && used === extents.used[extent], "the slots in use of an extent are counted");
  assert(unmovable === extents.unmovable[extent], "the unmovable slots are counted");
  assert(verifyFree(slots, extent, fresh) === fresh - used, "free slots stand in their list");
  totals.slots += used;
  totals.bytes += used * slotBytes;
  verifyPlace(extents, extent);
}

function verifyFree(slots: SlotAllocator, extent: number, fresh: number): number {
  let free = 0;
  let slot = slots.extents.firstFree[extent]!;
  while (slot !== NO_SLOT) {
    assert(slots.extentOf(slot) === extent, "a free slot is in its own extent's list");
    assert(slots.stateOf(slot) === SlotState.free, "a slot in the free list is free");
    assert(++free <= fresh, "the free list of an extent ends");
    slot = slots.records.linkOf(slot);
  }
  return free;
}

/** Every record belongs to an existing slot or is in the pool. */
function verifyRecords(slots: SlotAllocator): void {
  const { records, extents } = slots;
  let pooled = 0;
  for (let slot = records.pool; slot !== NO_SLOT; slot = records.nextOf(slot)) {
    assert(records.stateOf(slot) === SlotState.free, "a record in the pool is free");
    assert(++pooled <= records.highest, "the pool ends");
  }
  const existing = extents.fresh.reduce((sum, fresh) => sum + fresh, 0);
  assert(pooled + existing === records.highest, "no record is lost");
  assert(records.highest <= records.max, "records in use exist");
}

/** An extent with a free slot is in the list of its class and fullness. */
function verifyPlace(extents: ExtentLists, extent: number): void {
  const used = extents.used[extent]!;
  const slots = extents.capacity[extent]!;
  const first = extents.firstList(extents.classOf[extent]!, extents.zoneOf[extent]!);
  const list = first + Math.floor((used * EIGHTHS) / slots);
  assert(extents.listOf[extent] === (used === slots ? -1 : list), "an extent is in its list");
}

function verifyVacant(extents: ExtentLists, extent: number): void {
  assert(extents.used[extent] === 0, "an extent in no class is empty");
  assert(extents.unmovable[extent] === 0, "an empty extent holds nothing");
  assert(extents.listOf[extent] === -1, "an extent in no class is in no list of one");
}

function verifyClasses(extents: ExtentLists, extentCount: number): void {
  let assigned = 0;
  const lengths = new Set<number>();
  for (let sizeClass = 0; sizeClass < CLASSES_MAX; sizeClass++) {
    const own = Array.from({ length: extentCount }, (_, extent) => extent).filter(
      (extent) => extents.classOf[extent] === sizeClass,
    );
    const sum = (column: Int32Array) => own.reduce((total, extent) => total + column[extent]!, 0);
    assert(own.length === extents.classExtents[sizeClass], "the extents of a class are counted");
    assert(sum(extents.capacity) === extents.classSlots[sizeClass], "its slots are counted");
    assert(sum(extents.used) === extents.classUsed[sizeClass], "its slots in use are counted");
    assigned += own.length;
    if (own.length > 0) {
      assert(!lengths.has(extents.classBytes[sizeClass]!), "a slot length has one class");
      lengths.add(extents.classBytes[sizeClass]!);
    }
    for (let zone = 0; zone < extents.zones; zone++) {
      const list = extents.firstList(sizeClass, zone);
      for (let i = 0; i < EIGHTHS; i++) verifyList(extents, sizeClass, list + i);
    }
  }
  assert(assigned === extents.assigned, "extents with a class are counted");
}

function verifyList(extents: ExtentLists, sizeClass: number, list: number): void {
  let before = -1;
  let length = 0;
  for (let extent = extents.heads[list]!; extent !== -1; extent = extents.next[extent]!) {
    assert(extents.listOf[extent] === list, "an extent knows the list it is in");
    assert(extents.prev[extent] === before, "an extent list is linked both ways");
    assert(++length <= extents.classExtents[sizeClass]!, "an extent list ends");
    before = extent;
  }
  const members = extents.listOf.filter((of) => of === list).length;
  assert(length === members, "an extent list holds all its members");
}

function verifyReturned(slots: SlotAllocator): void {
  const { extents, extentCount, unopened, zoneStop } = slots;
  let returned = 0;
  let opened = 0;
  for (let zone = 0; zone < extents.zones; zone++) {
    opened += unopened[zone]! - (zone === 0 ? 0 : zoneStop[zone - 1]!);
    for (let at = extents.firstReturned[zone]!; at !== -1; at = extents.next[at]!) {
      assert(extents.classOf[at] === -1, "an extent given back has no class");
      assert(wasOpened(slots, at) && extents.zoneOf[at] === zone, "it waits in its own zone");
      assert(++returned <= extentCount, "the list of extents given back ends");
    }
  }
  assert(returned + extents.assigned === opened, "no extent is lost");
}

/** Number of slots that `reserve(bytes)` would return before NO_SLOT. */
export function freeSlots(slots: SlotAllocator, bytes: number): number {
  const { extents, limits } = slots;
  const slotBytes = slots.slotBytesFor(bytes);
  if (slotBytes > limits.slotBytesMax) return 0;
  if (slots.usedSlots === 0) return freeSlotsOfEmpty(slots, slotBytes);
  const own = classOf(extents, slotBytes);
  if (own < 0 && !extents.classExtents.includes(0)) return 0;
  const open = slots.openCount();
  const last = slots.extentCount - 1;
  const lastIsShort = slots.bytesOfExtent(last) < slots.extentBytes;
  const lastIsFree = last < open && extents.classOf[last] === -1;
  const whole = open - extents.assigned - (lastIsFree && lastIsShort ? 1 : 0);
  const inLast = lastIsFree && lastIsShort ? slots.capacity(last, slotBytes) : 0;
  const inClass = own < 0 ? 0 : extents.classSlots[own]! - extents.classUsed[own]!;
  return inClass + whole * slots.capacity(0, slotBytes) + inLast;
}

/** Result of `freeSlots` if the next reservation divides the arena anew. */
function freeSlotsOfEmpty(slots: SlotAllocator, slotBytes: number): number {
  const extentBytes = Math.ceil(slots.limits.extentBytesMin / slotBytes) * slotBytes;
  // All extents but the last are multiples of the slot.
  if (slots.readyBytes === slots.arenaBytes) return Math.floor(slots.arenaBytes / slotBytes);
  return Math.floor(slots.readyBytes / extentBytes) * (extentBytes / slotBytes);
}

/** The class of this slot length that is in use, or -1. */
function classOf({ classBytes, classExtents }: ExtentLists, slotBytes: number): number {
  for (let i = 0; i < CLASSES_MAX; i++) {
    if (classBytes[i] === slotBytes && classExtents[i] !== 0) return i;
  }
  return -1;
}
