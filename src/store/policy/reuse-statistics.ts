import { AGE_FROM, AGE_WIDTH, AGES, ageStep, ReturnModel } from "./return-model.ts";
import { Part, partOf, type Stretches, WEIGHT_OF_SIZE } from "./segments.ts";

/** Last blocks hardly ever return: one in so many leaves a ghost, and stands for all. */
const LAST_BLOCKS_A_GHOST = 8;
/** Requests between two looks: few at first, as there is much to learn. */
const LOOK_MIN = 8;
const LOOK_MAX = 64;
const LOOK_SHARE = 1 / 8;
/** Requests after which what was seen before counts half: traffic changes. */
const FADE_REQUESTS = 2 ** 14;
/** A look visits every ghost: so many blocks must have been used for each. */
const BLOCKS_A_GHOST = 1 / 32;

/** What was used when, and when it was used again: where the model and the guard learn from. */
export class Experience {
  readonly model: ReturnModel = new ReturnModel();
  readonly guard: LruGuard = new LruGuard();
  readonly #stretches: Stretches;
  readonly #ghosts: Ghosts;
  readonly #blocksAt = new Float64Array(AGES);
  #nextLook = LOOK_MIN;
  #nextFade = FADE_REQUESTS;
  #used = 0;
  // Evicted blocks of a stretch that came back: they are expected to be stored next.
  #awaited = 0;
  #awaitedKind = 0;
  #awaitedTick = 0;
  #awaitedSize = 0;

  constructor(stretches: Stretches, ghostsMax: number) {
    this.#stretches = stretches;
    this.#ghosts = new Ghosts(ghostsMax);
  }

  get bytes(): number {
    return this.model.bytes + this.#ghosts.bytes + this.#blocksAt.byteLength;
  }

  /** Blocks that last had this kind at this time, in a stretch of this size, were used again. */
  cameBack(kind: number, age: number, size: number, blocks: number): void {
    const weight = WEIGHT_OF_SIZE[size]!;
    this.model.returned(kind, ageStep(age), blocks * weight);
    this.guard.returned(age, blocks, blocks * weight * weight);
  }

  /** The last resident block of a stretch came back at `now`: what was evicted should follow. */
  awaitRest(stretch: number, now: number): void {
    const { gone, kind, tick, size } = this.#stretches;
    if (gone[stretch] === 0) return;
    this.#await(gone[stretch]!, kind[stretch]!, tick[stretch]!, size[stretch]!, now);
  }

  /** No more of it comes. */
  awaitNothing(now: number): void {
    this.#await(0, 0, 0, 0, now);
  }

  #await(blocks: number, kind: number, tick: number, size: number, now: number): void {
    if (this.#awaited > 0) {
      const age = now - this.#awaitedTick;
      this.#lose(this.#awaitedKind, age, this.#awaitedSize, this.#awaited);
    }
    this.#awaited = blocks;
    this.#awaitedKind = kind;
    this.#awaitedTick = tick;
    this.#awaitedSize = size;
  }

  /** A block was stored: answers what it was when it was last used, or null where it is new. */
  recall(fingerprint: number, now: number): { kind: number; age: number } | null {
    const at = this.#ghosts.find(fingerprint);
    if (at >= 0) return this.#meet(at, now);
    if (this.#awaited === 0) return null;
    this.#awaited--;
    const kind = this.#awaitedKind;
    const age = now - this.#awaitedTick;
    this.cameBack(kind, age, this.#awaitedSize, 1);
    return { kind, age };
  }

  #meet(at: number, now: number): { kind: number; age: number } {
    const ghosts = this.#ghosts;
    const kind = ghosts.kind[at]!;
    const size = ghosts.size[at]!;
    const blocks = ghosts.blocks[at]!;
    const tick = ghosts.tick[at]!;
    const age = now - tick;
    ghosts.remove(at);
    const isLast = partOf(kind) === Part.last;
    this.cameBack(kind, age, size, isLast ? blocks : 1);
    this.#await(isLast ? 0 : blocks - 1, kind, tick, size, now);
    return { kind, age };
  }

  /** The last resident block of a stretch was evicted. */
  leaveGhost(stretch: number, fingerprint: number, now: number): void {
    const { tick, kind, size, gone } = this.#stretches;
    const isLast = partOf(kind[stretch]!) === Part.last;
    if (isLast && (fingerprint >>> 24) % LAST_BLOCKS_A_GHOST !== 0) return;
    const ghosts = this.#ghosts;
    const at = ghosts.placeFor(fingerprint);
    const lost = ghosts.blocks[at]!;
    if (lost !== 0) this.#lose(ghosts.kind[at]!, now - ghosts.tick[at]!, ghosts.size[at]!, lost);
    const blocks = isLast ? LAST_BLOCKS_A_GHOST : gone[stretch]!;
    ghosts.put(at, fingerprint, tick[stretch]!, kind[stretch]!, size[stretch]!, blocks);
  }

  #lose(kind: number, age: number, size: number, blocks: number): void {
    this.model.lost(kind, ageStep(age), blocks * WEIGHT_OF_SIZE[size]!);
  }

  /** So many blocks were used. */
  used(blocks: number): void {
    this.#used += blocks;
  }

  isLookDue(now: number): boolean {
    return now >= this.#nextLook && this.#used >= this.#ghosts.blocks.length * BLOCKS_A_GHOST;
  }

  /** Brings model and guard up to date. `resident`: blocks that fill the tier, 0 = it has room. */
  look(now: number, resident: number): void {
    const between = Math.min(LOOK_MAX, now * LOOK_SHARE);
    this.#nextLook = now + Math.max(LOOK_MIN, Math.floor(between));
    this.#used = 0;
    if (now >= this.#nextFade) {
      this.#nextFade = now + FADE_REQUESTS;
      this.model.fade();
      this.guard.fade();
    }
    this.#blocksAt.fill(0);
    const { tick, kind, size, blocks, gone, end } = this.#stretches;
    for (let at = 1; at < end; at++) {
      if (!this.#stretches.isOpen(at)) continue;
      this.#waits(kind[at]!, now - tick[at]!, size[at]!, blocks[at]! + gone[at]!);
    }
    const ghosts = this.#ghosts;
    for (let at = 0; at < ghosts.blocks.length; at++) {
      const n = ghosts.blocks[at]!;
      if (n !== 0) this.#waits(ghosts.kind[at]!, now - ghosts.tick[at]!, ghosts.size[at]!, n);
    }
    this.model.fit(now);
    if (resident > 0) this.guard.look(this.#blocksAt, resident);
  }

  #waits(kind: number, age: number, size: number, blocks: number): void {
    const step = ageStep(age);
    const at = kind * AGES + step;
    const { waiting } = this.model;
    waiting[at] = waiting[at]! + blocks * WEIGHT_OF_SIZE[size]!;
    this.#blocksAt[step] = this.#blocksAt[step]! + blocks;
  }
}

/**
 * Stretches of which no block is left, by the fingerprint of their shallowest block: the one that
 * went last, and the one that a request which comes back stores first. Sets of four; the one used
 * longest ago makes room.
 */
class Ghosts {
  readonly tick: Uint32Array;
  readonly kind: Uint16Array;
  readonly size: Uint8Array;
  /** Blocks it stands for; 0 = the place is free. */
  readonly blocks: Uint16Array;
  readonly #fingerprint: Uint32Array;
  readonly #mask: number;

  /** Room for a power of two of ghosts, at most `max`. */
  constructor(max: number) {
    const length = 2 ** Math.floor(Math.log2(max));
    this.#mask = length / WAYS - 1;
    this.tick = new Uint32Array(length);
    this.kind = new Uint16Array(length);
    this.size = new Uint8Array(length);
    this.blocks = new Uint16Array(length);
    this.#fingerprint = new Uint32Array(length);
  }

  get bytes(): number {
    const { tick, kind, size, blocks } = this;
    const arrays = [tick, kind, size, blocks, this.#fingerprint];
    return arrays.reduce((sum, array) => sum + array.byteLength, 0);
  }

  /** The ghost with this fingerprint, or -1. */
  find(fingerprint: number): number {
    const from = (fingerprint & this.#mask) * WAYS;
    for (let at = from; at < from + WAYS; at++) {
      if (this.blocks[at] !== 0 && this.#fingerprint[at] === fingerprint) return at;
    }
    return -1;
  }

  /** The place for a new one: free, or of the ghost to be forgotten. */
  placeFor(fingerprint: number): number {
    const from = (fingerprint & this.#mask) * WAYS;
    let place = from;
    for (let at = from; at < from + WAYS; at++) {
      if (this.blocks[at] === 0) return at;
      if (this.tick[at]! < this.tick[place]!) place = at;
    }
    return place;
  }

  put(at: number, fingerprint: number, tick: number, kind: number, size: number, n: number): void {
    this.#fingerprint[at] = fingerprint;
    this.tick[at] = tick;
    this.kind[at] = kind;
    this.size[at] = size;
    this.blocks[at] = Math.min(n, 0xffff);
  }

  remove(at: number): void {
    this.blocks[at] = 0;
  }
}

const WAYS = 4;

/** LRU misses of what returned, as a share of all returns: below, there is nothing to win. */
const MISSED_SHARE = 0.012;
/** Once it was worth it, less is enough to go on. */
const STILL_MISSED_SHARE = 0.7 * MISSED_SHARE;
/** Blocks that returned without a miss and are taken for granted. */
const DOUBT = 64;
/** Missed stretches that it takes to begin: fewer may be chance, and the model knows as little. */
const STRETCHES_MIN = 64;

/**
 * Says whether LRU leaves anything to be won. Where a cache holds nearly all that returns, LRU is
 * nearly perfect, and any other order can only lose; as long as nothing is known, too. An LRU cache
 * evicts at the age at which the blocks used since fill it: what returned later is a miss of its.
 */
class LruGuard {
  #evictsAt = Number.POSITIVE_INFINITY;
  #missed = 0;
  #returned = 0;
  #missedStretches = 0;
  #isBeaten = false;

  /** Whether an order that learned is to be trusted. */
  get isBeaten(): boolean {
    return this.#isBeaten;
  }

  /** `stretches`: the part of a stretch that the blocks are. */
  returned(age: number, blocks: number, stretches: number): void {
    this.#returned += blocks;
    if (age <= this.#evictsAt) return;
    this.#missed += blocks;
    this.#missedStretches += stretches;
  }

  /** `blocksAt`: blocks last used at each step of age, resident or not; `resident`: of them. */
  look(blocksAt: Float64Array, resident: number): void {
    let younger = 0;
    let step = 0;
    while (step < AGES && younger + blocksAt[step]! < resident) younger += blocksAt[step++]!;
    this.#evictsAt =
      step === AGES
        ? Number.POSITIVE_INFINITY
        : AGE_FROM[step]! + (AGE_WIDTH[step]! * (resident - younger)) / blocksAt[step]!;
    const share = this.#missed / (this.#returned + DOUBT);
    this.#isBeaten = this.#isBeaten
      ? share > STILL_MISSED_SHARE
      : share > MISSED_SHARE && this.#missedStretches >= STRETCHES_MIN;
  }

  fade(): void {
    this.#missed /= 2;
    this.#returned /= 2;
    this.#missedStretches /= 2;
  }
}
