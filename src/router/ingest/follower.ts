import { type Clock, yieldToLoop } from "../../core/index.ts";
import type {
  ResidencyBatch,
  ResidencyDigest,
  ResidencyHeartbeat,
  ResidencySource,
} from "../../observability/activity/index.ts";
import type { IndexChange, PrefixIndex } from "../prefix-index.ts";
import type { TargetId } from "../workers.ts";
import { lastOf, type ResidencyArchive, type SourceSnapshot, sameDigests } from "./archive.ts";
import type { IngestCounts, IngestSettings } from "./ingest-settings.ts";
import type { Recoverable, RecoveryQueue } from "./recovery-queue.ts";

/** Dependencies that all followers share. */
export interface FollowerParts {
  readonly clock: Clock;
  readonly index: PrefixIndex;
  readonly archive: ResidencyArchive;
  readonly queue: RecoveryQueue;
  readonly budget: PendingBudget;
  readonly counts: IngestCounts;
  /** Time in ms to wait for reordered messages when a gap in the sequence numbers appears. */
  readonly reorderMs: number;
  /** Called when the router begins or ceases to know all blocks of a follower's target. */
  onKnown(follower: Follower): void;
}

/** Maximum blocks of a snapshot to apply before yielding to the event loop. */
const SLICE_BLOCKS = 65_536;
/**
 * Maximum consecutive range requests. A reply can leave a gap if more messages were lost meanwhile.
 */
const RANGES_MAX = 8;
/**
 * Base delay before a recovery after repeated digest mismatches. It doubles with each consecutive
 * mismatch.
 */
const MISMATCH_MS = 1_000;
const MISMATCHES_MAX = 6;

/**
 * Follows one source: applies its changes in order, each exactly once. Detects gaps and requests
 * the missing changes or a snapshot from the archive. Buffers changes that arrive during a
 * recovery.
 */
export class Follower implements Recoverable, Disposable {
  readonly #parts: FollowerParts;
  readonly target: TargetId;
  readonly #pending: PendingBatches;
  #source: ResidencySource;
  /** Sequence number of the last change applied to the index. */
  #sequence = 0;
  /** Highest sequence number that a message has announced. */
  #latest = 0;
  /** True if the index contains all blocks of the source at `#sequence`. */
  #hasSnapshot = false;
  /** True while a snapshot is being applied. No other changes may be applied then. */
  #isReplacing = false;
  /** True if a gap did not close in time, or digests differ. */
  #isBroken = false;
  /** True if digests differed: indexed blocks are wrong, so missing changes cannot repair them. */
  #isDoubted = false;
  /** Number of consecutive digest mismatches, each after a new snapshot. */
  #mismatches = 0;
  #heartbeat: ResidencyHeartbeat | null = null;
  #isDeviceKnown = true;
  #grace: Disposable | null = null;
  #wasKnown = false;
  #isOver = false;

  constructor(parts: FollowerParts, source: ResidencySource, target: TargetId) {
    this.#parts = parts;
    this.#source = source;
    this.target = target;
    this.#pending = new PendingBatches(parts.budget);
  }

  get source(): ResidencySource {
    return this.#source;
  }
  get sequence(): number {
    return this.#sequence;
  }
  /** True if the source's blocks are in the index, without a known gap or mismatch. */
  get isKnown(): boolean {
    return this.#hasSnapshot && !this.#isBroken;
  }
  /** True if the source said in its latest heartbeat that it reports all blocks on its device. */
  get isDeviceKnown(): boolean {
    return this.#isDeviceKnown;
  }

  /**
   * Starts from a snapshot that was loaded from a file into the index. `sequence`: its last change.
   */
  restore(sequence: number, isDeviceKnown: boolean): void {
    this.#sequence = sequence;
    this.#isDeviceKnown = isDeviceKnown;
    this.#latest = sequence;
    this.#hasSnapshot = true;
    this.#reportKnown();
  }

  batch(batch: ResidencyBatch): void {
    const { counts } = this.#parts;
    if (!this.#isOurs(batch.source.incarnation) || batch.changes.length === 0) return;
    this.#latest = Math.max(this.#latest, lastOf(batch));
    if (lastOf(batch) <= this.#sequence) {
      counts.duplicates++;
    } else if (!this.#hasSnapshot) {
      this.#pending.add(batch);
    } else if (batch.firstSequence <= this.#sequence + 1) {
      this.#apply(batch);
      this.#drain();
    } else {
      counts.early++;
      this.#pending.add(batch);
      this.#waitForHole();
    }
  }

  heartbeat(heartbeat: ResidencyHeartbeat): void {
    if (!this.#isOurs(heartbeat.source.incarnation)) return;
    this.#heartbeat = heartbeat;
    this.#isDeviceKnown = heartbeat.isDeviceKnown;
    this.#reportKnown();
    this.#latest = Math.max(this.#latest, heartbeat.lastSequence);
    if (!this.#hasSnapshot && !this.#isReplacing && isEmpty(heartbeat)) {
      this.#begin(0);
    } else if (!this.#hasSnapshot) {
      this.#parts.queue.want(this);
    } else if (heartbeat.lastSequence > this.#sequence) {
      this.#waitForHole();
    } else {
      this.#compare();
    }
  }

  /**
   * Compares digests with those of another router for the same source. If they differ, schedules a
   * recovery from the source.
   */
  compare(sequence: number, digests: readonly ResidencyDigest[]): void {
    this.#latest = Math.max(this.#latest, sequence);
    if (!this.isKnown) return;
    if (this.#hasHole()) this.#waitForHole();
    const own = sequence === this.#sequence ? this.#parts.index.digests(this.target) : null;
    if (own === null || sameDigests(own, digests)) return;
    this.#parts.counts.doubts++;
    this.#differ();
  }

  async recover(signal: AbortSignal): Promise<boolean> {
    if (this.#isOver || this.isKnown) return true;
    const healed = this.#hasSnapshot && this.#hasHole() && (await this.#byRange(signal));
    if (this.#isOver || healed === true) return true;
    return healed === "failed" ? false : this.#byPicture(signal);
  }

  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#parts.queue.forget(this);
    this.#grace?.[Symbol.dispose]();
    this.#pending.clear();
    this.#hasSnapshot = false;
    this.#reportKnown();
  }

  /**
   * Returns true if the message belongs to the current run of the source. Switches to a later run;
   * returns false for an earlier one.
   */
  #isOurs(incarnation: bigint): boolean {
    const own = this.#source.incarnation;
    if (incarnation < own) this.#parts.counts.stale++;
    if (incarnation <= own) return incarnation === own && !this.#isOver;
    this.#source = { ...this.#source, incarnation };
    this.#parts.counts.incarnations++;
    this.#forget();
    return !this.#isOver;
  }

  #forget(): void {
    this.#hasSnapshot = false;
    this.#isBroken = false;
    this.#isDoubted = false;
    this.#mismatches = 0;
    this.#sequence = 0;
    this.#latest = 0;
    this.#heartbeat = null;
    this.#pending.clear();
    this.#parts.index.drop(this.target);
    this.#reportKnown();
    this.#parts.queue.want(this);
  }

  #apply(batch: ResidencyBatch): void {
    const { counts, index } = this.#parts;
    const known = Math.max(0, this.#sequence + 1 - batch.firstSequence);
    const fresh = known === 0 ? batch.changes : batch.changes.slice(known);
    const changes: IndexChange[] = fresh.map((change) => ({ target: this.target, change }));
    index.apply(changes);
    counts.batches++;
    counts.changes += changes.length;
    this.#sequence = lastOf(batch);
  }

  #drain(): void {
    for (;;) {
      const next = this.#pending.takeUpTo(this.#sequence);
      if (next === null) break;
      if (lastOf(next) > this.#sequence) this.#apply(next);
    }
    if (this.#hasHole()) return;
    this.#grace?.[Symbol.dispose]();
    this.#grace = null;
    // Closing the gap repairs the state, unless digests differed before.
    if (this.#isBroken && !this.#isDoubted) this.#isBroken = false;
    this.#reportKnown();
  }

  #hasHole(): boolean {
    return this.#sequence < this.#latest;
  }

  #waitForHole(): void {
    const { clock, queue, reorderMs } = this.#parts;
    if (this.#isBroken) {
      queue.want(this);
      return;
    }
    this.#grace ??= clock.after(reorderMs, () => {
      this.#grace = null;
      if (!this.#hasHole()) return;
      this.#parts.counts.gaps++;
      this.#isBroken = true;
      this.#reportKnown();
      queue.want(this);
    });
  }

  #compare(): void {
    const { index, counts } = this.#parts;
    const heard = this.#heartbeat;
    const isComparable = heard?.lastSequence === this.#sequence && this.isKnown;
    if (heard === null || !isComparable) return;
    const own = index.digests(this.target);
    if (own === null || sameDigests(own, heard.digests)) {
      this.#mismatches = 0;
      return;
    }
    counts.mismatches++;
    this.#differ();
  }

  #differ(): void {
    const delayMs = this.#mismatches === 0 ? 0 : MISMATCH_MS * 2 ** this.#mismatches;
    this.#mismatches = Math.min(this.#mismatches + 1, MISMATCHES_MAX);
    this.#isDoubted = true;
    this.#isBroken = true;
    this.#reportKnown();
    this.#parts.queue.want(this, delayMs);
  }

  /**
   * Requests missing changes. Resolves true if the gap is closed, false if a snapshot is needed,
   * `failed` if the request failed.
   */
  async #byRange(signal: AbortSignal): Promise<boolean | "failed"> {
    const { archive, counts } = this.#parts;
    for (let round = 0; round < RANGES_MAX; round++) {
      if (this.#isOver || this.#isDoubted || !this.#hasSnapshot) return false;
      if (!this.#hasHole()) return true;
      const source = this.#source;
      const before = this.#sequence;
      const to = (this.#pending.first ?? this.#latest + 1) - 1;
      counts.ranges++;
      const answer = await archive.range(source, before + 1, to, signal);
      if (this.#source !== source || this.#isOver) return false;
      if (answer.kind === "failed") return "failed";
      if (answer.kind === "too_old") return !this.#hasHole() && this.#hasSnapshot;
      for (const batch of answer.batches) this.#fromRange(batch);
      // The source has no further changes, so the announced sequence number was wrong.
      if (answer.batches.length === 0)
        this.#latest = Math.max(this.#sequence, this.#pending.last ?? 0);
      this.#drain();
      if (this.#sequence === before) return !this.#hasHole();
    }
    return false;
  }

  #fromRange(batch: ResidencyBatch): void {
    if (batch.source.incarnation !== this.#source.incarnation) return;
    const isNext = batch.firstSequence <= this.#sequence + 1 && lastOf(batch) > this.#sequence;
    if (isNext) this.#apply(batch);
  }

  async #byPicture(signal: AbortSignal): Promise<boolean> {
    const { archive, counts } = this.#parts;
    const source = this.#source;
    counts.snapshots++;
    const answer = await archive.snapshot(source, signal);
    if (this.#isOver) return true;
    if (answer.kind === "failed") {
      counts.snapshotsFailed++;
      return false;
    }
    const { snapshot } = answer;
    const isOld = snapshot.source.incarnation < this.#source.incarnation;
    const isBehind = this.#hasSnapshot && !this.#isDoubted && snapshot.sequence < this.#sequence;
    if (isOld || isBehind) return this.isKnown;
    if (snapshot.source.incarnation > this.#source.incarnation) {
      this.#source = { ...this.#source, incarnation: snapshot.source.incarnation };
      this.#pending.clear();
      this.#latest = 0;
      this.#heartbeat = null;
    }
    // Keep the value from a heartbeat, which is newer than the snapshot.
    if (this.#heartbeat === null) this.#isDeviceKnown = snapshot.isDeviceKnown;
    await this.#replace(snapshot);
    return this.isKnown || !this.#hasSnapshot;
  }

  /**
   * Replaces the source's blocks in the index with a snapshot, then applies the buffered changes.
   */
  async #replace(snapshot: SourceSnapshot): Promise<void> {
    const { index } = this.#parts;
    const { incarnation } = this.#source;
    const isPast = () => this.#isOver || this.#source.incarnation !== incarnation;
    this.#isReplacing = true;
    this.#hasSnapshot = false;
    this.#reportKnown();
    try {
      index.drop(this.target);
      let isFirst = true;
      for (const slice of slicesOf(snapshot, this.target)) {
        if (!isFirst) await yieldToLoop();
        if (isPast()) break;
        index.apply(slice);
        isFirst = false;
      }
    } finally {
      this.#isReplacing = false;
      // The source restarted or this follower was disposed meanwhile, so the snapshot is invalid.
      if (isPast()) index.drop(this.target);
    }
    if (!isPast()) this.#begin(snapshot.sequence);
  }

  #begin(sequence: number): void {
    this.#hasSnapshot = true;
    this.#isBroken = false;
    this.#isDoubted = false;
    this.#sequence = sequence;
    this.#latest = Math.max(this.#latest, sequence);
    this.#drain();
    if (this.#hasHole()) this.#waitForHole();
    this.#reportKnown();
    this.#compare();
  }

  #reportKnown(): void {
    const isKnown = this.isKnown && this.#isDeviceKnown;
    if (isKnown === this.#wasKnown) return;
    this.#wasKnown = isKnown;
    this.#parts.onKnown(this);
  }
}

function isEmpty({ lastSequence, digests }: ResidencyHeartbeat): boolean {
  return lastSequence === 0 && digests.every(({ blocks }) => blocks === 0);
}

/** Splits a snapshot into slices of about SLICE_BLOCKS blocks. */
function* slicesOf({ runs }: SourceSnapshot, target: TargetId): Generator<readonly IndexChange[]> {
  let slice: IndexChange[] = [];
  let blocks = 0;
  for (const { tier, parent, hashes } of runs) {
    slice.push({ target, change: { kind: "stored", tier, parent, hashes, tokenHashes: null } });
    blocks += hashes.length + 1;
    if (blocks < SLICE_BLOCKS) continue;
    yield slice;
    [slice, blocks] = [[], 0];
  }
  if (slice.length > 0) yield slice;
}

/** Memory limits and use of the buffers for out-of-order batches. Shared by all sources. */
export class PendingBudget {
  readonly limits: IngestSettings["pending"];
  hashes = 0;
  /** Number of batches dropped because the buffer was full. Recovery requests them again. */
  dropped = 0;

  constructor(limits: IngestSettings["pending"]) {
    this.limits = limits;
  }
}

/** Buffered out-of-order batches of one source, in order of sequence numbers. */
export class PendingBatches {
  readonly #budget: PendingBudget;
  #batches: ResidencyBatch[] = [];
  #hashes = 0;

  constructor(budget: PendingBudget) {
    this.#budget = budget;
  }

  get size(): number {
    return this.#batches.length;
  }

  /** Sequence number of the first change in the buffer. Null if the buffer is empty. */
  get first(): number | null {
    return this.#batches[0]?.firstSequence ?? null;
  }

  /** Sequence number of the last change in the buffer. Null if the buffer is empty. */
  get last(): number | null {
    const last = this.#batches.at(-1);
    return last === undefined ? null : lastOf(last);
  }

  /** Adds a batch. Returns false if the batch is already buffered or the buffer is full. */
  add(batch: ResidencyBatch): boolean {
    const hashes = hashesIn(batch);
    const { limits } = this.#budget;
    const isFull =
      this.#batches.length >= limits.batchesPerSourceMax ||
      this.#budget.hashes + hashes > limits.hashesMax;
    if (isFull) {
      this.#budget.dropped++;
      return false;
    }
    let at = this.#batches.length;
    while (at > 0 && this.#batches[at - 1].firstSequence > batch.firstSequence) at--;
    const before = this.#batches[at - 1];
    if (before?.firstSequence === batch.firstSequence) {
      if (before.changes.length >= batch.changes.length) return false;
    }
    this.#batches.splice(at, 0, batch);
    this.#count(hashes);
    return true;
  }

  /**
   * Removes and returns the first batch if it starts at or before `sequence + 1`. Otherwise returns
   * null.
   */
  takeUpTo(sequence: number): ResidencyBatch | null {
    const first = this.#batches[0];
    if (first === undefined || first.firstSequence > sequence + 1) return null;
    this.#batches.shift();
    this.#count(-hashesIn(first));
    return first;
  }

  clear(): void {
    this.#batches = [];
    this.#count(-this.#hashes);
  }

  #count(hashes: number): void {
    this.#hashes += hashes;
    this.#budget.hashes += hashes;
  }
}

/** Returns the size of a batch as counted against the limit: its hashes, plus one per change. */
export function hashesIn(batch: ResidencyBatch): number {
  let sum = batch.changes.length;
  for (const change of batch.changes) if (change.kind !== "cleared") sum += change.hashes.length;
  return sum;
}
