import { assert } from "../../core/index.ts";
import type { SizeClass } from "./slot-allocator.ts";

/** Maximum number of slot sizes (size classes) in use at the same time. */
export const CLASSES_MAX = 64;
/**
 * Number of extent lists per zone and class, one for each eighth of fullness. An extent without a
 * free slot is in no list.
 */
export const EIGHTHS = 8;
const IN_NO_LIST = -1;

/** Zone argument that means no preferred zone. */
export const ANY_ZONE = -1;

/**
 * Size class and fullness of each extent. Invariants: an extent with a free slot is in the list of
 * its zone, class and eighth. An extent without a class is in the list of returned extents of its
 * zone, or was never in use. A class without extents can be reused for another slot length.
 */
export class ExtentLists {
  /** Size class of each extent; -1: none. */
  readonly classOf: Int16Array;
  readonly used: Int32Array;
  readonly capacity: Int32Array;
  /**
   * Number of slots of each extent that were handed out at least once since the extent joined its
   * class. The slots behind them were never handed out.
   */
  readonly fresh: Int32Array;
  /** Number of slots of each extent that are reserved or quarantined. */
  readonly unmovable: Int32Array;
  /** First free slot of each extent that was handed out before; 0: none. */
  readonly firstFree: Int32Array;
  /**
   * First (`newest`) and last (`eldest`) slot in the chain of the slots of each extent that were
   * handed out at least once.
   */
  readonly newest: Int32Array;
  readonly eldest: Int32Array;
  /** List that contains each extent: `(zone × 64 + class) × 8 + eighth`; -1: none. */
  readonly listOf: Int16Array;
  /** Zone of each extent. */
  readonly zoneOf: Uint8Array;
  /** Neighbours of each extent in its list; -1: end of the list. */
  readonly next: Int32Array;
  readonly prev: Int32Array;
  readonly heads: Int32Array;
  readonly zones: number;
  /** First extent in the list of returned extents of each zone. */
  readonly firstReturned: Int32Array;
  assigned = 0;
  readonly classBytes = new Float64Array(CLASSES_MAX);
  readonly classExtents = new Int32Array(CLASSES_MAX);
  readonly classSlots = new Int32Array(CLASSES_MAX);
  readonly classUsed = new Int32Array(CLASSES_MAX);

  constructor(extentsMax: number, zones: number) {
    this.zones = zones;
    this.heads = new Int32Array(zones * CLASSES_MAX * EIGHTHS).fill(-1);
    this.firstReturned = new Int32Array(zones).fill(-1);
    this.zoneOf = new Uint8Array(extentsMax);
    this.classOf = new Int16Array(extentsMax).fill(-1);
    this.used = new Int32Array(extentsMax);
    this.capacity = new Int32Array(extentsMax);
    this.fresh = new Int32Array(extentsMax);
    this.unmovable = new Int32Array(extentsMax);
    this.firstFree = new Int32Array(extentsMax);
    this.newest = new Int32Array(extentsMax);
    this.eldest = new Int32Array(extentsMax);
    this.listOf = new Int16Array(extentsMax).fill(IN_NO_LIST);
    this.next = new Int32Array(extentsMax);
    this.prev = new Int32Array(extentsMax);
  }

  /** Resets all lists. The arena must be empty. */
  reset(): void {
    assert(this.assigned === 0, "only an empty arena is divided anew");
    this.firstReturned.fill(-1);
  }

  /**
   * Returns the number of the list with the emptiest extents of a class in a zone. The lists of
   * fuller ones have the next numbers.
   */
  firstList(sizeClass: number, zone: number): number {
    return (zone * CLASSES_MAX + sizeClass) * EIGHTHS;
  }

  /**
   * Returns the class of this slot length in bytes, creating it if necessary. -1: all classes are
   * in use.
   */
  classFor(slotBytes: number): number {
    const found = this.findClass(slotBytes);
    if (found >= 0) return found;
    const vacant = this.classExtents.indexOf(0);
    if (vacant >= 0) this.classBytes[vacant] = slotBytes;
    return vacant;
  }

  slotBytesOf(extent: number): number {
    return this.classBytes[this.classOf[extent]];
  }

  usedBytesOf(extent: number): number {
    return this.classOf[extent] === -1 ? 0 : this.used[extent] * this.slotBytesOf(extent);
  }

  /**
   * Returns an extent of the class with a free slot, from the fullest list that is not empty. -1:
   * none.
   */
  fullest(sizeClass: number, zone: number): number {
    const { heads, zones } = this;
    const from = zone === ANY_ZONE ? 0 : zone;
    const to = zone === ANY_ZONE ? zones : zone + 1;
    for (let eighth = EIGHTHS - 1; eighth >= 0; eighth--) {
      for (let at = from; at < to; at++) {
        const head = heads[this.firstList(sizeClass, at) + eighth];
        if (head !== -1) return head;
      }
    }
    return -1;
  }

  assign(extent: number, sizeClass: number, slots: number): void {
    this.classOf[extent] = sizeClass;
    this.capacity[extent] = slots;
    this.classExtents[sizeClass] = this.classExtents[sizeClass] + 1;
    this.classSlots[sizeClass] = this.classSlots[sizeClass] + slots;
    this.assigned++;
    this.enter(extent, this.firstList(sizeClass, this.zoneOf[extent]));
  }

  /**
   * Counts a slot of the extent that is handed out for the first time, and adds it to the extent's
   * chain.
   */
  addFresh(extent: number, slot: number): void {
    assert(this.fresh[extent] < this.capacity[extent], "an extent with a free slot has room");
    this.fresh[extent] = this.fresh[extent] + 1;
    if (this.eldest[extent] === 0) this.eldest[extent] = slot;
    this.newest[extent] = slot;
  }

  changeUsed(extent: number, by: number): void {
    const sizeClass = this.classOf[extent];
    const used = this.used[extent] + by;
    this.used[extent] = used;
    this.classUsed[sizeClass] = this.classUsed[sizeClass] + by;
    const slots = this.capacity[extent];
    const eighth = Math.floor((used * EIGHTHS) / slots);
    const first = this.firstList(sizeClass, this.zoneOf[extent]);
    const list = used === slots ? IN_NO_LIST : first + eighth;
    if (list === this.listOf[extent]) return;
    this.leave(extent);
    if (list !== IN_NO_LIST) this.enter(extent, list);
  }

  /** Removes an extent without slots in use from its class and adds it to the returned extents. */
  giveBack(extent: number): void {
    const sizeClass = this.classOf[extent];
    this.leave(extent);
    this.classExtents[sizeClass] = this.classExtents[sizeClass] - 1;
    this.classSlots[sizeClass] = this.classSlots[sizeClass] - this.capacity[extent];
    this.classOf[extent] = -1;
    this.capacity[extent] = 0;
    this.fresh[extent] = 0;
    this.firstFree[extent] = 0;
    this.newest[extent] = 0;
    this.eldest[extent] = 0;
    this.assigned--;
    const zone = this.zoneOf[extent];
    this.next[extent] = this.firstReturned[zone];
    this.firstReturned[zone] = extent;
  }

  /**
   * Takes the most recently returned extent of the zone, but not extent `unfit`. Returns -1 if
   * there is none.
   */
  takeReturned(unfit: number, zone: number): number {
    const { next } = this;
    const first = this.firstReturned[zone];
    if (first === -1) return -1;
    if (first !== unfit) {
      this.firstReturned[zone] = next[first];
      return first;
    }
    const second = next[first];
    if (second !== -1) next[first] = next[second];
    return second;
  }

  classes(): SizeClass[] {
    const rows: SizeClass[] = [];
    for (let i = 0; i < CLASSES_MAX; i++) {
      if (this.classExtents[i] === 0) continue;
      rows.push({
        slotBytes: this.classBytes[i],
        extents: this.classExtents[i],
        slots: this.classSlots[i],
        used: this.classUsed[i],
      });
    }
    return rows.sort((a, b) => a.slotBytes - b.slotBytes);
  }

  private findClass(slotBytes: number): number {
    const { classBytes, classExtents } = this;
    for (let i = 0; i < CLASSES_MAX; i++) {
      if (classBytes[i] === slotBytes && classExtents[i] !== 0) return i;
    }
    return -1;
  }

  private enter(extent: number, list: number): void {
    const head = this.heads[list];
    this.next[extent] = head;
    this.prev[extent] = -1;
    if (head !== -1) this.prev[head] = extent;
    this.heads[list] = extent;
    this.listOf[extent] = list;
  }

  private leave(extent: number): void {
    const list = this.listOf[extent];
    if (list === IN_NO_LIST) return;
    const next = this.next[extent];
    const prev = this.prev[extent];
    if (next !== -1) this.prev[next] = prev;
    if (prev !== -1) this.next[prev] = next;
    else this.heads[list] = next;
    this.listOf[extent] = IN_NO_LIST;
  }
}
