import { type Clock, yieldToLoop } from "../../core/index.ts";
import {
  RESIDENCY_TIERS,
  type ResidencyChange,
  type ResidencySource,
  type ResidencyTier,
} from "../../observability/activity/index.ts";
import { type ResidencyRun, type ResidencySnapshotPart, snapshotParts } from "../index.ts";
import { Chains } from "./published-sets.ts";
import type { ResidencyLog } from "./residency-log.ts";

export interface Snapshot {
  readonly id: bigint;
  readonly source: ResidencySource;
  /** Number of the last change that the snapshot includes. */
  readonly sequence: number;
  readonly isDeviceKnown: boolean;
  readonly blocks: number;
  readonly parts: readonly (readonly ResidencyRun[])[];
}

export interface SnapshotOptions {
  readonly residency: ResidencyLog;
  readonly clock: Clock;
  /** Returns the maximum bytes of an encoded part. */
  readonly partBytesMax: () => number;
}

/**
 * Ms after which an unread snapshot is discarded. A snapshot older than FRESH_MS is not returned to
 * new queries; a new one is taken.
 */
const KEPT_MS = 30_000;
const FRESH_MS = 2_000;
/** Maximum snapshots kept. An older one may still be read by a consumer when a newer one exists. */
const KEPT_MAX = 2;
/** Maximum attempts to take a snapshot if the rank is cleared in the meantime. */
const TRIES = 4;

/**
 * Snapshots of one rank. Each is the exact state after one change number. Taking a snapshot runs in
 * steps, so that other work runs in between; at the end, the changes made in the meantime are
 * applied to it. Only one snapshot is taken at a time. All queries share it as long as the ring
 * still has the changes that follow it.
 */
export class Snapshots {
  readonly #options: SnapshotOptions;
  #kept: { snapshot: Snapshot; takenMs: number; usedMs: number }[] = [];
  #making: Promise<Snapshot | null> | null = null;
  #lastId = 0n;
  #isOver = false;

  constructor(options: SnapshotOptions) {
    this.#options = options;
  }

  /** Number of snapshots taken so far. */
  get made(): number {
    return Number(this.#lastId);
  }

  /**
   * Returns a sufficiently new snapshot. Takes one if necessary. Null if that is not possible now.
   */
  async take(): Promise<Snapshot | null> {
    const { clock, residency } = this.#options;
    this.#forgetOld();
    const nowMs = clock.monotonicMs();
    const latest = this.#kept.at(-1);
    const leadsOn = (latest?.snapshot.sequence ?? -1) >= residency.ring.first - 1;
    if (latest !== undefined && leadsOn && nowMs - latest.takenMs < FRESH_MS) {
      latest.usedMs = nowMs;
      return latest.snapshot;
    }
    this.#making ??= this.#make().finally(() => {
      this.#making = null;
    });
    return this.#making;
  }

  find(id: bigint): Snapshot | null {
    this.#forgetOld();
    const found = this.#kept.find(({ snapshot }) => snapshot.id === id);
    if (found === undefined) return null;
    found.usedMs = this.#options.clock.monotonicMs();
    return found.snapshot;
  }

  /** Stops taking snapshots. */
  end(): void {
    this.#isOver = true;
    this.#kept = [];
  }

  #forgetOld(): void {
    const nowMs = this.#options.clock.monotonicMs();
    this.#kept = this.#kept.filter(({ usedMs }) => nowMs - usedMs < KEPT_MS);
  }

  async #make(): Promise<Snapshot | null> {
    for (let tries = 0; tries < TRIES && !this.#isOver; tries++) {
      const taken = await this.#walk();
      if (taken === null) continue;
      const runs: ResidencyRun[] = [];
      for await (const run of taken.edits.applyTo(taken.runs)) runs.push(run);
      if (this.#isOver) return null;
      return this.#keep(taken.sequence, runs);
    }
    return null;
  }

  /**
   * Reads all sets in steps and applies the changes made meanwhile. Returns null if there were too
   * many.
   */
  async #walk(): Promise<{
    readonly sequence: number;
    readonly runs: readonly ResidencyRun[];
    readonly edits: SnapshotEdits;
  } | null> {
    const { residency } = this.#options;
    const edits = new SnapshotEdits();
    using _listening = residency.listen(({ changes }) => edits.note(changes));
    const runs: ResidencyRun[] = [];
    for (const held of residency.held) {
      const slices = held.slices();
      while (true) {
        // Until the next turn of the event loop, the sets equal the published state.
        residency.flush();
        const slice = slices.next();
        if (slice.done === true) break;
        for (const change of slice.value) if (change.kind === "stored") runs.push(change);
        await yieldToLoop();
        if (edits.isTooMuch || this.#isOver) return null;
      }
    }
    return { sequence: residency.lastSequence, runs, edits };
  }

  async #keep(sequence: number, runs: readonly ResidencyRun[]): Promise<Snapshot> {
    const { residency, clock, partBytesMax } = this.#options;
    const id = ++this.#lastId;
    const parts: (readonly ResidencyRun[])[] = [];
    let blocks = 0;
    for (const part of snapshotParts(runs, partBytesMax())) {
      parts.push(part);
      for (const { hashes } of part) blocks += hashes.length;
      await yieldToLoop();
    }
    const { source, isDeviceKnown } = residency;
    const snapshot = { id, source, sequence, isDeviceKnown, blocks, parts };
    const nowMs = clock.monotonicMs();
    this.#kept.push({ snapshot, takenMs: nowMs, usedMs: nowMs });
    if (this.#kept.length > KEPT_MAX) this.#kept.shift();
    return snapshot;
  }
}

/** Returns the reply with part number `part` of the snapshot. */
export function partOf(snapshot: Snapshot, part: number): ResidencySnapshotPart {
  const { id, source, sequence, isDeviceKnown, parts } = snapshot;
  const of = { kind: "snapshot", source, snapshot: id, sequence, isDeviceKnown } as const;
  return { ...of, part, isLast: part === parts.length - 1, runs: parts[part] };
}

/**
 * Maximum blocks that change while a snapshot is taken. If there are more, the snapshot is aborted.
 */
const BLOCKS_MAX = 2 ** 20;
/** Blocks examined per step, between which other work runs. */
const LOOKS_A_SLICE = 65_536;

type Edited = Map<bigint, { readonly parent: bigint | null } | null>;

/** The blocks that changed while a snapshot was taken, with their final state. */
class SnapshotEdits {
  readonly #tiers = new Map<ResidencyTier, Edited>(
    RESIDENCY_TIERS.map((tier) => [tier, new Map()]),
  );
  #blocks = 0;
  #isCleared = false;

  /** True if too many blocks changed; the snapshot must be taken again. */
  get isTooMuch(): boolean {
    return this.#isCleared || this.#blocks > BLOCKS_MAX;
  }

  note(changes: readonly ResidencyChange[]): void {
    for (const change of changes) {
      if (change.kind === "cleared") this.#isCleared = true;
      else if (!this.isTooMuch) this.#noteBlocks(change);
    }
  }

  #noteBlocks(change: Exclude<ResidencyChange, { kind: "cleared" }>): void {
    const edited = this.#tiers.get(change.tier)!;
    this.#blocks += change.hashes.length;
    let parent = change.kind === "stored" ? change.parent : null;
    for (const hash of change.hashes) {
      edited.set(hash, change.kind === "stored" ? { parent } : null);
      parent = hash;
    }
  }

  /** Yields the runs without the changed blocks, then the changed blocks in their final state. */
  async *applyTo(runs: readonly ResidencyRun[]): AsyncGenerator<ResidencyRun> {
    let looks = 0;
    for (const run of runs) {
      const edited = this.#tiers.get(run.tier)!;
      yield* edited.size === 0 ? [run] : without(run, edited);
      looks += run.hashes.length;
      if (looks < LOOKS_A_SLICE) continue;
      looks = 0;
      await yieldToLoop();
    }
    for (const [tier, edited] of this.#tiers) {
      const chains = new Chains(tier);
      for (const [hash, now] of edited) if (now !== null) chains.add(hash, now.parent);
      for (const change of chains.done()) if (change.kind === "stored") yield change;
    }
  }
}

function* without(run: ResidencyRun, edited: Edited): Generator<ResidencyRun> {
  const { tier, hashes } = run;
  const part = (from: number, end: number): ResidencyRun => {
    const parent = from === 0 ? run.parent : hashes[from - 1];
    return { tier, parent, hashes: hashes.subarray(from, end) };
  };
  let from = 0;
  for (let at = 0; at < hashes.length; at++) {
    if (!edited.has(hashes[at])) continue;
    if (at > from) yield part(from, at);
    from = at + 1;
  }
  if (from < hashes.length) yield from === 0 ? run : part(from, hashes.length);
}
