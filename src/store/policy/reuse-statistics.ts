import { AGE_FROM, AGE_WIDTH, AGES, ageStep, ReturnModel } from "./return-model.ts";
import { Part, partOf, type Segments, WEIGHT_OF_SIZE } from "./segments.ts";

/**
 * Last blocks of requests rarely return, so only one evicted segment in this many is recorded as a
 * ghost, which counts for all of them.
 */
const LAST_BLOCKS_A_GHOST = 8;
/**
 * Number of requests between two updates of the model: this share of all requests, with a minimum
 * and a maximum.
 */
const LOOK_MIN = 8;
const LOOK_MAX = 64;
const LOOK_SHARE = 1 / 8;
/**
 * Number of requests after which the weight of earlier observations is halved, since traffic
 * changes.
 */
const FADE_REQUESTS = 2 ** 14;
/**
 * Number of blocks, per ghost, that must have been used before the next update, because an update
 * visits every ghost.
 */
const BLOCKS_A_GHOST = 1 / 32;

/** Records when blocks are used and used again, as input for the return model and the LRU guard. */
export class ReuseStatistics {
  readonly model: ReturnModel = new ReturnModel();
  readonly guard: LruGuard = new LruGuard();
  readonly #segments: Segments;
  readonly #ghosts: Ghosts;
  readonly #blocksAt = new Float64Array(AGES);
  #nextLook = LOOK_MIN;
  #nextFade = FADE_REQUESTS;
  #used = 0;
  // The evicted blocks of a segment that was used again. They are expected to be stored next.
  #awaited = 0;
  #awaitedKind = 0;
  #awaitedTick = 0;
  #awaitedSize = 0;

  constructor(segments: Segments, ghostsMax: number) {
    this.#segments = segments;
    this.#ghosts = new Ghosts(ghostsMax);
  }

  /**
   * Records that `blocks` blocks of a segment of this size were used again, `age` requests after
   * their last use, which was of this kind.
   */
  cameBack(kind: number, age: number, size: number, blocks: number): void {
    const weight = WEIGHT_OF_SIZE[size];
    this.model.returned(kind, ageStep(age), blocks * weight);
    this.guard.returned(age, blocks, blocks * weight * weight);
  }

  /**
   * Expects the evicted blocks of a segment to be stored. Call when the segment's last resident
   * block was used again at request `now`.
   */
  awaitRest(segment: number, now: number): void {
    const { gone, kind, tick, size } = this.#segments;
    if (gone[segment] === 0) return;
    this.#await(gone[segment], kind[segment], tick[segment], size[segment], now);
  }

  /** Stops expecting evicted blocks to be stored. */
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

  /**
   * Reports that a block was stored. Returns kind and age of its last use if it was evicted
   * earlier, or null if it is new.
   */
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
    const kind = ghosts.kind[at];
    const size = ghosts.size[at];
    const blocks = ghosts.blocks[at];
    const tick = ghosts.tick[at];
    const age = now - tick;
    ghosts.remove(at);
    const isLast = partOf(kind) === Part.last;
    this.cameBack(kind, age, size, isLast ? blocks : 1);
    this.#await(isLast ? 0 : blocks - 1, kind, tick, size, now);
    return { kind, age };
  }

  /** Records an evicted segment as a ghost. Call when its last resident block was evicted. */
  leaveGhost(segment: number, fingerprint: number, now: number): void {
    const { tick, kind, size, gone } = this.#segments;
    const isLast = partOf(kind[segment]) === Part.last;
    if (isLast && (fingerprint >>> 24) % LAST_BLOCKS_A_GHOST !== 0) return;
    const ghosts = this.#ghosts;
    const at = ghosts.placeFor(fingerprint);
    const lost = ghosts.blocks[at];
    if (lost !== 0) this.#lose(ghosts.kind[at], now - ghosts.tick[at], ghosts.size[at], lost);
    const blocks = isLast ? LAST_BLOCKS_A_GHOST : gone[segment];
    ghosts.put(at, fingerprint, tick[segment], kind[segment], size[segment], blocks);
  }

  #lose(kind: number, age: number, size: number, blocks: number): void {
    this.model.lost(kind, ageStep(age), blocks * WEIGHT_OF_SIZE[size]);
  }

  /** Counts blocks that were used. */
  used(blocks: number): void {
    this.#used += blocks;
  }

  isLookDue(now: number): boolean {
    return now >= this.#nextLook && this.#used >= this.#ghosts.blocks.length * BLOCKS_A_GHOST;
  }

  /**
   * Updates return model and LRU guard. `resident`: number of resident blocks if the tier is full,
   * 0 if it has room.
   */
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
    const { tick, kind, size, blocks, gone, end } = this.#segments;
    for (let at = 1; at < end; at++) {
      if (!this.#segments.isOpen(at)) continue;
      this.#waits(kind[at], now - tick[at], size[at], blocks[at] + gone[at]);
    }
    const ghosts = this.#ghosts;
    for (let at = 0; at < ghosts.blocks.length; at++) {
      const n = ghosts.blocks[at];
      if (n !== 0) this.#waits(ghosts.kind[at], now - ghosts.tick[at], ghosts.size[at], n);
    }
    this.model.fit(now);
    if (resident > 0) this.guard.look(this.#blocksAt, resident);
  }

  #waits(kind: number, age: number, size: number, blocks: number): void {
    const step = ageStep(age);
    const at = kind * AGES + step;
    const { waiting } = this.model;
    waiting[at] = waiting[at] + blocks * WEIGHT_OF_SIZE[size];
    this.#blocksAt[step] = this.#blocksAt[step] + blocks;
  }
}

/**
 * Records (ghosts) of evicted segments by the fingerprint of their shallowest block. That block was
 * evicted last, and a returning request stores it first. Hash table with sets of four entries; the
 * least recently used entry of a set is replaced.
 */
class Ghosts {
  readonly tick: Uint32Array;
  readonly kind: Uint16Array;
  readonly size: Uint8Array;
  /** Number of blocks that the entry stands for; 0 if the entry is free. */
  readonly blocks: Uint16Array;
  readonly #fingerprint: Uint32Array;
  readonly #mask: number;

  /** Creates a table whose capacity is the largest power of two up to `max`. */
  constructor(max: number) {
    const length = 2 ** Math.floor(Math.log2(max));
    this.#mask = length / WAYS - 1;
    this.tick = new Uint32Array(length);
    this.kind = new Uint16Array(length);
    this.size = new Uint8Array(length);
    this.blocks = new Uint16Array(length);
    this.#fingerprint = new Uint32Array(length);
  }

  /** Returns the index of the entry with this fingerprint, or -1. */
  find(fingerprint: number): number {
    const from = (fingerprint & this.#mask) * WAYS;
    for (let at = from; at < from + WAYS; at++) {
      if (this.blocks[at] !== 0 && this.#fingerprint[at] === fingerprint) return at;
    }
    return -1;
  }

  /** Returns the index for a new ghost: a free entry of its set, or the least recently used one. */
  placeFor(fingerprint: number): number {
    const from = (fingerprint & this.#mask) * WAYS;
    let place = from;
    for (let at = from; at < from + WAYS; at++) {
      if (this.blocks[at] === 0) return at;
      if (this.tick[at] < this.tick[place]) place = at;
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

/** Share of all returns, 0 to 1, that LRU must miss for the learned order to be used. */
const MISSED_SHARE = 0.012;
/** Lower share above which the learned order stays in use. */
const STILL_MISSED_SHARE = 0.7 * MISSED_SHARE;
/** Number of returns without a miss that the guard adds to the observed ones (pseudo-count). */
const DOUBT = 64;
/**
 * Minimum number of missed segments before the learned order is used first: fewer may be chance,
 * and the model has little data then.
 */
const SEGMENTS_MIN = 64;

/**
 * Decides whether the learned order can gain hits over LRU. If a cache holds nearly all blocks that
 * return, LRU is nearly optimal and any other order can only lose; the same holds without data. An
 * LRU cache evicts a block at the age at which the blocks used since fill the cache, so a return at
 * a higher age is an LRU miss.
 */
class LruGuard {
  #evictsAt = Number.POSITIVE_INFINITY;
  #missed = 0;
  #returned = 0;
  #missedSegments = 0;
  #isBeaten = false;

  /** True if the learned order should be used. */
  get isBeaten(): boolean {
    return this.#isBeaten;
  }

  /**
   * Counts blocks that were used again `age` requests after their last use. `segments`: the
   * fraction of their segment that they are.
   */
  returned(age: number, blocks: number, segments: number): void {
    this.#returned += blocks;
    if (age <= this.#evictsAt) return;
    this.#missed += blocks;
    this.#missedSegments += segments;
  }

  /**
   * Updates the age at which LRU evicts. `blocksAt`: number of blocks by step of the age of their
   * last use, resident or not. `resident`: number of resident blocks.
   */
  look(blocksAt: Float64Array, resident: number): void {
    let younger = 0;
    let step = 0;
    while (step < AGES && younger + blocksAt[step] < resident) younger += blocksAt[step++];
    this.#evictsAt =
      step === AGES
        ? Number.POSITIVE_INFINITY
        : AGE_FROM[step] + (AGE_WIDTH[step] * (resident - younger)) / blocksAt[step];
    const share = this.#missed / (this.#returned + DOUBT);
    this.#isBeaten = this.#isBeaten
      ? share > STILL_MISSED_SHARE
      : share > MISSED_SHARE && this.#missedSegments >= SEGMENTS_MIN;
  }

  fade(): void {
    this.#missed /= 2;
    this.#returned /= 2;
    this.#missedSegments /= 2;
  }
}
