import { NO_NODE, type NodeId } from "../../core/index.ts";
import { ageStep } from "./age.ts";
import { Experience } from "./experience.ts";
import { Leaves } from "./leaves.ts";
import { Stretches } from "./stretches.ts";
import { Part, turnOf, useKind } from "./use-kind.ts";
import type { OrderView, VictimOrder } from "./victim-order.ts";
import { VictimQueue } from "./victim-queue.ts";

/** One stretch and one ghost for so many ids; a small cache gets some more. */
const IDS_A_STRETCH = 2.5;
const STRETCHES_MIN = 512;
const IDS_A_GHOST = 4;
const GHOSTS_MIN = 4096;
/** A block with so many children starts conversations: none of them is the one that comes back. */
const CHILDREN_OF_A_START = 4;
/** Makes whole numbers below 2^27 of 32-bit floats, in the same order. */
const WORTH_SHIFT = 5;
const KEY_MAX = 2 ** 27 - 1;

/**
 * Keeps what is most likely to be asked for again. Each request's path is cut in stretches of which
 * the whole story is alike; from experience with such stretches it is learned what keeping one is
 * worth at each age, and the leaf of the least worth goes first. Where LRU leaves nothing to be won
 * it is LRU to the last block. `docs/policy.md` tells how it was found.
 */
export function createHearthOrder(view: OrderView, idsMax: number): VictimOrder {
  return new HearthOrder(view, idsMax);
}

class HearthOrder implements VictimOrder {
  readonly name = "hearth";
  readonly #view: OrderView;
  readonly #stretches: Stretches;
  readonly #leaves: Leaves;
  readonly #experience: Experience;
  readonly #queue: VictimQueue;
  /** Requests so far: the only clock. */
  #now = 1;
  /** Something was removed: so the tier has been full. */
  #wasFull = false;
  /** Removals until victims are chosen anew. */
  #mayGo = 0;
  #eldest = 0;

  // The request at hand. Its deepest block so far is spared: its next piece hangs there.
  #isOpen = false;
  #known = 0;
  #fresh = 0;
  #turn = 0;
  #gap = 0;
  #added = 0;

  constructor(view: OrderView, idsMax: number) {
    this.#view = view;
    this.#stretches = new Stretches(STRETCHES_MIN + Math.ceil(idsMax / IDS_A_STRETCH));
    this.#queue = new VictimQueue(this.#stretches, (stretch) => this.#keyOf(stretch));
    const offer = (stretch: number) => this.#queue.offer(stretch);
    this.#leaves = new Leaves(view, idsMax, this.#stretches, offer);
    const ghostsMax = Math.max(GHOSTS_MIN, Math.ceil(idsMax / IDS_A_GHOST));
    this.#experience = new Experience(this.#stretches, ghostsMax);
  }

  get bytes(): number {
    return this.#leaves.bytes + this.#stretches.bytes + this.#experience.bytes + this.#queue.bytes;
  }

  used(ids: ArrayLike<NodeId>): void {
    this.#say(ids, false);
  }

  stored(ids: ArrayLike<NodeId>): void {
    this.#say(ids, true);
  }

  removed(id: NodeId): void {
    const leaves = this.#leaves;
    if (!leaves.isResident(id)) return;
    this.#wasFull = true;
    const stretch = leaves.stretchOf[id]!;
    const { blocks, gone } = this.#stretches;
    if (gone[stretch]! < 0xffff) gone[stretch] = gone[stretch]! + 1;
    if (blocks[stretch] === 1 && !this.#isOfRequest(stretch)) {
      this.#experience.leaveGhost(stretch, this.#view.fingerprintOf(id), this.#now);
    }
    if (id === leaves.spared) leaves.spared = NO_NODE;
    leaves.leave(id);
    this.#leaveStretch(stretch);
    // Where many go at once, nobody may want a victim before they are all gone.
    if (--this.#mayGo === 0) this.#queue.clear();
  }

  protect(id: NodeId): void {
    this.#leaves.protect(id);
  }

  unprotect(id: NodeId): void {
    this.#leaves.unprotect(id);
  }

  victim(): NodeId {
    let leaf = this.#queue.first();
    if (leaf === 0) {
      this.#choose();
      leaf = this.#queue.first();
    }
    if (leaf !== 0) return leaf as NodeId;
    const { spared } = this.#leaves;
    return spared !== NO_NODE && this.#leaves.isLeaf(spared) ? spared : NO_NODE;
  }

  #choose(): void {
    if (!this.#experience.guard.isBeaten) this.#eldest = this.#stretches.eldest(this.#now);
    this.#mayGo = this.#queue.choose(this.#leaves.resident);
  }

  /** Low ones go first: by worth, or by the time of the last use where LRU is not to be beaten. */
  #keyOf(stretch: number): number {
    const tick = this.#stretches.tick[stretch]!;
    const { guard, model } = this.#experience;
    if (!guard.isBeaten) return Math.min(KEY_MAX, Math.max(0, tick - this.#eldest));
    const kind = this.#stretches.kind[stretch]!;
    return model.worthBits(kind, ageStep(this.#now - tick)) >>> WORTH_SHIFT;
  }

  #say(ids: ArrayLike<NodeId>, stored: boolean): void {
    let from = 0;
    for (let at = 1; at <= ids.length; at++) {
      if (at < ids.length && this.#view.parentOf(ids[at]!) === ids[at - 1]) continue;
      this.#piece(ids, from, at, stored);
      from = at;
    }
  }

  #piece(ids: ArrayLike<NodeId>, from: number, to: number, stored: boolean): void {
    const leaves = this.#leaves;
    const parent = this.#view.parentOf(ids[from]!);
    if (!this.#isOpen || parent === NO_NODE || parent !== leaves.spared) this.#begin();
    this.#experience.used(to - from);
    const before = leaves.spared;
    for (let at = from; at < to; at++) {
      const id = ids[at]!;
      if (leaves.isResident(id)) this.#useAgain(id);
      else if (stored) this.#store(id);
      else continue;
      leaves.spared = id;
    }
    leaves.unlist(leaves.spared);
    if (before !== leaves.spared) leaves.list(before);
  }

  #begin(): void {
    this.#finish();
    this.#now++;
    if (this.#experience.isLookDue(this.#now)) this.#look();
    this.#isOpen = true;
    this.#known = this.#stretches.open(useKind(Part.known, 0, 0, 0), this.#now);
    this.#fresh = this.#stretches.open(useKind(Part.fresh, 0, 0, 0), this.#now);
    this.#turn = 0;
    this.#gap = 0;
    this.#added = 0;
  }

  #look(): void {
    const { guard } = this.#experience;
    const wasBeaten = guard.isBeaten;
    this.#experience.look(this.#now, this.#wasFull ? this.#leaves.resident : 0);
    if (guard.isBeaten !== wasBeaten) this.#choose();
  }

  #useAgain(id: NodeId): void {
    const stretch = this.#leaves.stretchOf[id]!;
    if (this.#isOfRequest(stretch)) return;
    const { kind, tick, size, blocks } = this.#stretches;
    const age = this.#now - tick[stretch]!;
    this.#experience.cameBack(kind[stretch]!, age, size[stretch]!, 1);
    this.#isKnown(kind[stretch]!, age);
    if (this.#leaves.childrenOf(id) >= CHILDREN_OF_A_START) this.#turn = 0;
    this.#leaves.unlist(id);
    this.#join(id, this.#known);
    if (blocks[stretch] === 1) this.#experience.awaitRest(stretch, this.#now);
    this.#leaveStretch(stretch);
  }

  #store(id: NodeId): void {
    this.#leaves.enter(id);
    const before = this.#experience.recall(this.#view.fingerprintOf(id), this.#now);
    if (before === null) {
      this.#join(id, this.#fresh);
      this.#added++;
      return;
    }
    this.#isKnown(before.kind, before.age);
    this.#join(id, this.#known);
    this.#knownAbove(id);
  }

  /** So far the request goes on where one of this kind ended. */
  #isKnown(kind: number, age: number): void {
    this.#turn = turnOf(kind) + 1;
    this.#gap = age;
    this.#added = 0;
  }

  /** What was taken for fresh above a block that was known is known too. */
  #knownAbove(id: NodeId): void {
    const { blocks } = this.#stretches;
    let above = this.#view.parentOf(id);
    while (above !== NO_NODE && this.#leaves.isResident(above)) {
      if (this.#leaves.stretchOf[above] !== this.#fresh) return;
      this.#join(above, this.#known);
      blocks[this.#fresh] = blocks[this.#fresh]! - 1;
      above = this.#view.parentOf(above);
    }
  }

  #isOfRequest(stretch: number): boolean {
    return this.#isOpen && (stretch === this.#known || stretch === this.#fresh);
  }

  #join(id: number, stretch: number): void {
    const { blocks } = this.#stretches;
    this.#leaves.stretchOf[id] = stretch;
    blocks[stretch] = blocks[stretch]! + 1;
  }

  #leaveStretch(stretch: number): void {
    const { blocks } = this.#stretches;
    blocks[stretch] = blocks[stretch]! - 1;
    if (blocks[stretch] === 0 && !this.#isOfRequest(stretch)) this.#stretches.close(stretch);
  }

  /** Nothing more can follow: now it is known what the request was. */
  #finish(): void {
    if (!this.#isOpen) return;
    this.#experience.awaitNothing(this.#now);
    const end = this.#leaves.spared;
    this.#leaves.spared = NO_NODE;
    if (end !== NO_NODE) {
      const before = this.#leaves.stretchOf[end]!;
      const kind = useKind(Part.last, this.#turn, this.#gap, this.#added);
      this.#leaves.unlist(end);
      this.#join(end, this.#stretches.open(kind, this.#now));
      this.#leaveStretch(before);
    }
    this.#isOpen = false;
    this.#seal(this.#known, Part.known);
    this.#seal(this.#fresh, Part.fresh);
    if (end !== NO_NODE) this.#leaves.list(end);
  }

  #seal(stretch: number, part: Part): void {
    if (this.#stretches.blocks[stretch] === 0) {
      this.#stretches.close(stretch);
      return;
    }
    this.#stretches.seal(stretch, useKind(part, this.#turn, this.#gap, this.#added));
    if (this.#stretches.leaf[stretch] !== 0) this.#queue.offer(stretch);
  }
}
