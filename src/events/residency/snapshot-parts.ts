import { assert, yieldToLoop } from "../../core/index.ts";
import type { ResidencyBatch, ResidencyChange } from "../../observability/activity/index.ts";
import type { ReadResult } from "../dynamo/envelope.ts";
import { CHANGE_BYTES, decodeAnswer, encodeAnswer, packedBytes } from "./codec.ts";
import {
  blocksIn,
  RESIDENCY_LIMITS,
  type ResidencyRun,
  type ResidencySnapshotPart,
  type SubjectOf,
} from "./messages.ts";

/**
 * The same change as several of at most `blocksMax` blocks: before numbers are given, for one
 * number is one change.
 */
export function splitChange(
  change: ResidencyChange,
  blocksMax: number = RESIDENCY_LIMITS.blocksMax,
): readonly ResidencyChange[] {
  assert(blocksMax > 0, "room for a block");
  if (change.kind === "cleared" || change.hashes.length <= blocksMax) return [change];
  const parts: ResidencyChange[] = [];
  for (let at = 0; at < change.hashes.length; at += blocksMax) {
    const hashes = change.hashes.subarray(at, at + blocksMax);
    if (change.kind === "removed") {
      parts.push({ ...change, hashes });
      continue;
    }
    const parent = at === 0 ? change.parent : change.hashes[at - 1]!;
    const tokenHashes = change.tokenHashes?.subarray(at, at + blocksMax) ?? null;
    parts.push({ ...change, parent, hashes, tokenHashes });
  }
  return parts;
}

/** What `encodeBatch` may make of a block and of a change without any, at most. */
const LIVE_BLOCK_BYTES = 64;
const LIVE_CHANGE_BYTES = 192;
const LIVE_ENVELOPE_BYTES = 512;

/** Batches that may each be sent: `RESIDENCY_LIMITS` and `bytesMax` hold once encoded. */
export function* splitBatch(batch: ResidencyBatch, bytesMax: number): Generator<ResidencyBatch> {
  const { source, changes } = batch;
  let [start, blocks] = [0, 0];
  const fits = (count: number, more: number) => {
    const bytes = LIVE_ENVELOPE_BYTES + count * LIVE_CHANGE_BYTES + more * LIVE_BLOCK_BYTES;
    const isFew = count <= RESIDENCY_LIMITS.changesMax && more <= RESIDENCY_LIMITS.blocksMax;
    return isFew && bytes <= bytesMax;
  };
  const part = (end: number) => ({
    source,
    firstSequence: batch.firstSequence + start,
    changes: changes.slice(start, end),
  });
  for (const [i, change] of changes.entries()) {
    const own = blocksIn(change);
    assert(fits(1, own), "a change that may be sent: see splitChange");
    if (!fits(i - start + 1, blocks + own)) {
      yield part(i);
      [start, blocks] = [i, 0];
    }
    blocks += own;
  }
  if (start < changes.length) yield part(changes.length);
}

/** The largest `splitChange` of which one change surely fits into a message of `bytesMax`. */
export function liveBlocksMax(bytesMax: number): number {
  const room = bytesMax - LIVE_ENVELOPE_BYTES - LIVE_CHANGE_BYTES;
  return Math.min(RESIDENCY_LIMITS.blocksMax, Math.floor(room / LIVE_BLOCK_BYTES));
}

const ANSWER_BYTES = 512;

/** As many of the changes, from `from` on, as fit into an answer of `bytesMax`; one at least. */
export function fitRange(
  changes: readonly ResidencyChange[],
  from: number,
  bytesMax: number,
): readonly ResidencyChange[] {
  let [end, bytes] = [from, ANSWER_BYTES];
  while (end < changes.length && end - from < RESIDENCY_LIMITS.packedChangesMax) {
    bytes += packedBytes(changes[end]!);
    if (bytes > bytesMax && end > from) break;
    end++;
  }
  return changes.slice(from, end);
}

/** Runs in parts that each fit into an answer of `bytesMax`; one part, empty, of no runs. */
export function* snapshotParts(
  runs: Iterable<ResidencyRun>,
  bytesMax: number,
): Generator<readonly ResidencyRun[]> {
  const room = bytesMax - ANSWER_BYTES;
  assert(room >= CHANGE_BYTES + 8, "room for a block");
  let [part, left, hasAny] = [[] as ResidencyRun[], room, false];
  for (const run of runs) {
    for (let at = 0; at < run.hashes.length; ) {
      if (left < CHANGE_BYTES + 8 || part.length === RESIDENCY_LIMITS.packedChangesMax) {
        yield part;
        [part, left, hasAny] = [[], room, true];
      }
      const hashes = run.hashes.subarray(at, at + Math.floor((left - CHANGE_BYTES) / 8));
      const parent = at === 0 ? run.parent : run.hashes[at - 1]!;
      part.push({ tier: run.tier, parent, hashes });
      left -= CHANGE_BYTES + hashes.length * 8;
      at += hashes.length;
    }
  }
  if (part.length > 0 || !hasAny) yield part;
}

/** Parts in one object at most; more are no honest ones. */
const PARTS_MAX = 65_536;
const LENGTH_BYTES = 4;

/** Where publishers of a cluster keep pictures: a bucket of objects. */
export function snapshotBucket(cluster: string): string {
  return `kv-snapshots-${cluster.replaceAll(".", "_")}`;
}

/** The stream that keeps what is published on `eventsSubject`. */
export function eventsStream(cluster: string): string {
  return `kv-events-${cluster.replaceAll(".", "_")}`;
}

/** Name of the object that holds the latest picture of one rank. */
export function snapshotObject({ worker, rank }: SubjectOf): string {
  return `${worker}.${rank}`;
}

/**
 * A whole snapshot as one object: its parts as they would be answered, from the first to the last,
 * each behind its length (u32, little-endian).
 */
export async function encodeStoredSnapshot(
  parts: readonly ResidencySnapshotPart[],
): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  for (const part of parts) {
    const bytes = encodeAnswer(part);
    const length = new Uint8Array(LENGTH_BYTES);
    new DataView(length.buffer).setUint32(0, bytes.length, true);
    pieces.push(length, bytes);
    // A part is some milliseconds' work.
    await yieldToLoop();
  }
  return Buffer.concat(pieces);
}

/** Its parts, all of one snapshot and in their order. Never throws. */
export function decodeStoredSnapshot(
  bytes: Uint8Array,
): ReadResult<readonly [ResidencySnapshotPart, ...ResidencySnapshotPart[]]> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const parts: ResidencySnapshotPart[] = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + LENGTH_BYTES;
    const length = end <= bytes.length ? view.getUint32(at, true) : bytes.length;
    if (end + length > bytes.length) return { ok: false, why: "it ends in the middle" };
    const read = decodeAnswer(bytes.subarray(end, end + length));
    if (!read.ok) return read;
    if (read.value.kind !== "snapshot") return { ok: false, why: "a part that is none" };
    if (parts.length === PARTS_MAX) return { ok: false, why: "too many parts" };
    if (!isNext(parts, read.value)) return { ok: false, why: "parts that do not fit together" };
    parts.push(read.value);
    at = end + length;
  }
  const [first, ...rest] = parts;
  if (first === undefined || parts.at(-1)?.isLast !== true) {
    return { ok: false, why: "its last part is missing" };
  }
  return { ok: true, value: [first, ...rest] };
}

function isNext(parts: readonly ResidencySnapshotPart[], next: ResidencySnapshotPart): boolean {
  const [first] = parts;
  if (next.part !== parts.length) return false;
  if (first === undefined) return true;
  const { source, snapshot, sequence } = first;
  return (
    !parts.at(-1)!.isLast &&
    next.snapshot === snapshot &&
    next.sequence === sequence &&
    next.source.worker === source.worker &&
    next.source.rank === source.rank &&
    next.source.incarnation === source.incarnation
  );
}
