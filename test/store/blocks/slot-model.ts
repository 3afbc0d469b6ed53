/**
 * The literal model of the slot allocator: a list of the slots in use; the rest is counted
 * anew each time. It does not choose slots, it judges those the real one chose.
 */

import { type SlotAllocator, SlotState } from "../../../src/store/blocks/index.ts";

export interface ModelSlot {
  readonly slot: number;
  readonly offset: number;
  /** Bytes of the slot, rounded up. */
  readonly bytes: number;
  readonly extent: number;
  readonly generation: number;
  state: SlotState;
  node: number;
}

const ALIGN = 4096;

export class SlotModel {
  readonly arenaBytes: number;
  readonly slotBytesMax: number;
  readonly extentBytesMin: number;
  ready = 0;
  extentBytes = 0;
  used: ModelSlot[] = [];
  readonly generations = new Set<number>();

  constructor(arenaBytes: number, slotBytesMax: number, extentBytes: number) {
    this.arenaBytes = arenaBytes;
    this.slotBytesMax = slotBytesMax;
    this.extentBytesMin = Math.max(extentBytes, slotBytesMax);
  }

  addReady(bytes: number): void {
    this.ready = Math.min(this.arenaBytes, this.ready + bytes);
  }

  /**
   * Slots that could be given, in an arena as it is or, where it is empty, divided for this length.
   */
  free(bytes: number): number {
    const length = slotLength(bytes);
    if (length > this.slotBytesMax) return 0;
    const extentBytes = this.used.length > 0 ? this.extentBytes : this.divided(length);
    let free = 0;
    for (let extent = 0; extent * extentBytes < this.arenaBytes; extent++) {
      const start = extent * extentBytes;
      const end = Math.min(this.arenaBytes, start + extentBytes);
      if (end > this.ready) continue;
      const inside = this.inExtent(extent);
      if (inside.length > 0 && inside[0]!.bytes !== length) continue;
      free += Math.floor((end - start) / length) - inside.length;
    }
    return free;
  }

  /** Judges the answer of a reservation; records the slot, if any. */
  reserved(real: SlotAllocator, bytes: number, slot: number): string | null {
    const free = this.free(bytes);
    if (slot === 0) return free === 0 ? null : `${free} slots are free, none was given`;
    const length = slotLength(bytes);
    if (this.used.length === 0) this.extentBytes = this.divided(length);
    const given: ModelSlot = {
      slot,
      offset: real.offsetOf(slot),
      bytes: length,
      extent: Math.floor(real.offsetOf(slot) / this.extentBytes),
      generation: real.generationOf(slot),
      state: SlotState.reserved,
      node: 0,
    };
    const wrong = this.judge(given, real);
    this.generations.add(given.generation);
    this.used.push(given);
    return wrong;
  }

  freed(slot: ModelSlot): void {
    this.used.splice(this.used.indexOf(slot), 1);
  }

  inExtent(extent: number): ModelSlot[] {
    return this.used.filter((slot) => slot.extent === extent);
  }

  /** Extents that could be emptied for a slot of another length, the cheapest first. */
  emptiable(bytes: number): number[] {
    const length = slotLength(bytes);
    const cost = (extent: number) => this.inExtent(extent).length * this.inExtent(extent)[0]!.bytes;
    return [...new Set(this.used.map((slot) => slot.extent))]
      .filter((extent) => this.inExtent(extent)[0]!.bytes !== length)
      .filter((extent) => this.inExtent(extent).every((slot) => slot.state === SlotState.live))
      .filter((extent) => this.extentLength(extent) >= length)
      .sort((a, b) => cost(a) - cost(b) || a - b);
  }

  private divided(length: number): number {
    return Math.ceil(this.extentBytesMin / length) * length;
  }

  private extentLength(extent: number): number {
    return Math.min(this.extentBytes, this.arenaBytes - extent * this.extentBytes);
  }

  private judge(given: ModelSlot, real: SlotAllocator): string | null {
    const end = given.offset + given.bytes;
    const start = given.extent * this.extentBytes;
    if (given.offset % ALIGN !== 0) return "a slot is aligned";
    if (given.generation === 0) return "a generation is above zero";
    if (real.slotBytesOf(given.slot) !== given.bytes) return "a slot is as long as its block";
    if (end > start + this.extentLength(given.extent)) return "a slot lies in one extent";
    if (start + this.extentLength(given.extent) > this.ready) return "its extent is ready";
    if (this.generations.has(given.generation)) return "a generation is never used again";
    for (const other of this.used) {
      if (other.slot === given.slot) return "a slot in use is not given again";
      if (given.offset < other.offset + other.bytes && other.offset < end) return "slots overlap";
    }
    const own = this.inExtent(given.extent);
    if (own.some((slot) => slot.bytes !== given.bytes)) return "an extent has one class";
    return this.fullest(given) ? null : "a slot comes from a fuller extent where there is one";
  }

  /**
   * No other extent of the class with a free slot is fuller by an eighth; a new one is the last
   * resort.
   */
  private fullest(given: ModelSlot): boolean {
    const eighth = (extent: number) => {
      const slots = Math.floor(this.extentLength(extent) / given.bytes);
      const used = this.inExtent(extent).length;
      return used === slots ? -1 : Math.floor((used * 8) / slots);
    };
    const others = this.used
      .filter((slot) => slot.bytes === given.bytes)
      .map((slot) => slot.extent);
    const allowed = others.includes(given.extent) ? eighth(given.extent) : -1;
    return others.every((extent) => eighth(extent) <= allowed);
  }
}

export function slotLength(bytes: number): number {
  return Math.max(1, Math.ceil(bytes / ALIGN)) * ALIGN;
}
