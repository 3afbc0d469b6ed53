import { assert, yieldToLoop } from "../../core/index.ts";
import type { ResidencyBatch, ResidencyChange } from "../../observability/activity/index.ts";
import type { ReadResult } from "../fields.ts";
import {
  CHANGE_BYTES,
  decodeAnswer,
  encodeAnswer,
  packedBytes,
  type ResidencyRun,
  type ResidencySnapshotPart,
} from "./codec.ts";
import { blocksIn, RESIDENCY_LIMITS, type SubjectOf } from "./messages.ts";

/**
 * Splits a change into several of at most `blocksMax` blocks. Must be done before the changes get
 * their numbers, because each change has one number.
 */
export function splitChange(
  change: ResidencyChange,
  blocksMax: number = RESIDENCY_LIMITS.blocksMax,
): readonly ResidencyChange[] {
  assert(blocksMax > 0, "room for at least one block");
  if (change.kind === "cleared" || change.hashes.length <= blocksMax) return [change];
  const parts: ResidencyChange[] = [];
  for (let at = 0; at < change.hashes.length; at += blocksMax) {
    const hashes = change.hashes.subarray(at, at + blocksMax);
    if (change.kind === "removed") {
      parts.push({ ...change, hashes });
      continue;
    }
    const parent = at === 0 ? change.parent : change.hashes[at - 1];
    const tokenHashes = change.tokenHashes?.subarray(at, at + blocksMax) ?? null;
    parts.push({ ...change, parent, hashes, tokenHashes });
  }
  return parts;
}

/**
 * Maximum bytes of an encoded block in a live batch, and of an encoded change without its blocks.
 */
const LIVE_BLOCK_BYTES = 64;
const LIVE_CHANGE_BYTES = 192;
const LIVE_ENVELOPE_BYTES = 512;

/**
 * Splits a batch into parts. Each satisfies `RESIDENCY_LIMITS` and, once encoded, has at most
 * `bytesMax` bytes.
 */
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
    assert(fits(1, own), "a change must fit into a message: see splitChange");
    if (!fits(i - start + 1, blocks + own)) {
      yield part(i);
      [start, blocks] = [i, 0];
    }
    blocks += own;
  }
  if (start < changes.length) yield part(changes.length);
}

const ANSWER_BYTES = 512;

/**
 * Returns as many changes, from index `from` on, as fit in a reply of `bytesMax` bytes; at least
 * one.
 */
export function fitRange(
  changes: readonly ResidencyChange[],
  from: number,
  bytesMax: number,
): readonly ResidencyChange[] {
  let [end, bytes] = [from, ANSWER_BYTES];
  while (end < changes.length && end - from < RESIDENCY_LIMITS.packedChangesMax) {
    bytes += packedBytes(changes[end]);
    if (bytes > bytesMax && end > from) break;
    end++;
  }
  return changes.slice(from, end);
}

/**
 * Groups runs into parts that fit in a reply of `bytesMax` bytes. Yields one empty part if there
 * are no runs.
 */
export function* snapshotParts(
  runs: Iterable<ResidencyRun>,
  bytesMax: number,
): Generator<readonly ResidencyRun[]> {
  const room = bytesMax - ANSWER_BYTES;
  assert(room >= CHANGE_BYTES + 8, "room for at least one block");
  let [part, left, hasAny] = [[] as ResidencyRun[], room, false];
  for (const run of runs) {
    for (let at = 0; at < run.hashes.length; ) {
      if (left < CHANGE_BYTES + 8 || part.length === RESIDENCY_LIMITS.packedChangesMax) {
        yield part;
        [part, left, hasAny] = [[], room, true];
      }
      const hashes = run.hashes.subarray(at, at + Math.floor((left - CHANGE_BYTES) / 8));
      const parent = at === 0 ? run.parent : run.hashes[at - 1];
      part.push({ tier: run.tier, parent, hashes });
      left -= CHANGE_BYTES + hashes.length * 8;
      at += hashes.length;
    }
  }
  if (part.length > 0 || !hasAny) yield part;
}

/** Maximum parts in one stored snapshot; one with more is invalid. */
const PARTS_MAX = 65_536;
const LENGTH_BYTES = 4;

/** Returns the name of the JetStream object bucket for the snapshots of a cluster. */
export function snapshotBucket(cluster: string): string {
  return `kv-snapshots-${cluster.replaceAll(".", "_")}`;
}

/** Returns the name of the JetStream stream that captures `eventsSubject`. */
export function eventsStream(cluster: string): string {
  return `kv-events-${cluster.replaceAll(".", "_")}`;
}

/** Returns the name of the object that contains the latest snapshot of one rank. */
export function snapshotObject({ worker, rank }: SubjectOf): string {
  return `${worker}.${rank}`;
}

/**
 * Encodes a whole snapshot as one object: its parts in order, encoded as in replies, each preceded
 * by its length (u32, little-endian).
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
    // Encoding a part takes some milliseconds, so other work runs in between.
    await yieldToLoop();
  }
  return Buffer.concat(pieces);
}

/**
 * Decodes the parts of a stored snapshot. They must belong to one snapshot and be in order. Never
 * throws.
 */
export function decodeStoredSnapshot(
  bytes: Uint8Array,
): ReadResult<readonly [ResidencySnapshotPart, ...ResidencySnapshotPart[]]> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const parts: ResidencySnapshotPart[] = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + LENGTH_BYTES;
    const length = end <= bytes.length ? view.getUint32(at, true) : bytes.length;
    if (end + length > bytes.length) return { ok: false, why: "object is truncated" };
    const read = decodeAnswer(bytes.subarray(end, end + length));
    if (!read.ok) return read;
    if (read.value.kind !== "snapshot") return { ok: false, why: "entry is not a snapshot part" };
    if (parts.length === PARTS_MAX) return { ok: false, why: "too many parts" };
    if (!isNext(parts, read.value)) return { ok: false, why: "parts of different snapshots" };
    parts.push(read.value);
    at = end + length;
  }
  const [first, ...rest] = parts;
  if (first === undefined || parts.at(-1)?.isLast !== true) {
    return { ok: false, why: "the last part is missing" };
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
