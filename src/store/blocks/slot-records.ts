import { SlotState } from "./slot-allocator.ts";

/**
 * Words of a record: the node of a slot in use, or the next free slot of its extent; the
 * generation; the next slot of the extent, or the next record in the pool; state and place in the
 * arena.
 */
const WORDS = 4;
const NODE = 0;
const GENERATION = 1;
const NEXT = 2;
const PLACE = 3;
const STATE_SHIFT = 28;
const PLACE_MASK = 2 ** STATE_SHIFT - 1;

/**
 * One record per slot that exists: 16 bytes, four to a cache line. A slot's number is that of its
 * record, from 1. Records of extents that left their class wait in a pool, so that the numbers in
 * use stay dense, whatever the length of the slots: memory follows the number of slots, also where
 * the kernel hands it out in huge pages.
 */
export class SlotRecords {
  readonly max: number;
  /** Records above were never used. */
  highest = 0;
  pool = 0;
  private readonly words: Int32Array;
  /** By slot: readers that need its bytes to stay. */
  private readonly references: Int32Array;

  constructor(max: number) {
    this.max = max;
    this.words = new Int32Array(new ArrayBuffer((max + 1) * WORDS * 4));
    this.references = new Int32Array(new ArrayBuffer((max + 1) * 4));
  }

  /** A record for the slot at `place`, free and nobody's, before `next` in its extent's chain. */
  take(place: number, next: number): number {
    let slot = this.pool;
    if (slot === 0) slot = ++this.highest;
    else this.pool = this.nextOf(slot);
    this.words[slot * WORDS + NODE] = 0;
    this.words[slot * WORDS + NEXT] = next;
    this.words[slot * WORDS + PLACE] = place;
    return slot;
  }

  /** Gives back the chain that begins with `first` and ends with `last`, all of them free. */
  give(first: number, last: number): void {
    this.words[last * WORDS + NEXT] = this.pool;
    this.pool = first;
  }

  nextOf(slot: number): number {
    return this.words[slot * WORDS + NEXT]!;
  }

  placeOf(slot: number): number {
    return this.words[slot * WORDS + PLACE]! & PLACE_MASK;
  }

  /** `free` for numbers that are no slot's. */
  stateOf(slot: number): SlotState {
    return ((this.words[slot * WORDS + PLACE] ?? SlotState.free) >>> STATE_SHIFT) as SlotState;
  }

  setState(slot: number, state: SlotState): void {
    this.words[slot * WORDS + PLACE] = this.placeOf(slot) | (state << STATE_SHIFT);
  }

  generationOf(slot: number): number {
    return this.words[slot * WORDS + GENERATION]! >>> 0;
  }

  setGeneration(slot: number, generation: number): void {
    this.words[slot * WORDS + GENERATION] = generation;
  }

  /** The node of a slot in use, the next free slot of a free one. */
  linkOf(slot: number): number {
    return this.words[slot * WORDS + NODE]!;
  }

  setLink(slot: number, to: number): void {
    this.words[slot * WORDS + NODE] = to;
  }

  referencesOf(slot: number): number {
    return this.references[slot]!;
  }

  changeReferences(slot: number, by: number): void {
    this.references[slot] = this.references[slot]! + by;
  }
}
