import { yieldToLoop } from "../../core/index.ts";
import type { ReadResult } from "../dynamo/index.ts";
import { decodeAnswer, encodeAnswer } from "./answer-codec.ts";
import type { ResidencySnapshotPart } from "./messages.ts";
import type { SubjectOf } from "./subjects.ts";

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
