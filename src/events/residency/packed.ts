import {
  RESIDENCY_TIERS,
  type ResidencyChange,
  type ResidencyTier,
} from "../../observability/activity/index.ts";
import { type MsgpackReader, type MsgpackWriter, Unreadable } from "../msgpack/index.ts";
import { RESIDENCY_LIMITS, type ResidencyRun } from "./messages.ts";

/**
 * Changes and runs as short lists, with hashes as bytes, each a u64 little-endian: eight bytes a
 * block, where the maps of Dynamo's events take fifty.
 *
 * `["s", tier, parent, hashes, token hashes or nil]`, `["r", tier, hashes]`, `["c", tier or nil]`;
 * a run: `[tier, parent, hashes]`. A tier is its place in RESIDENCY_TIERS.
 */
export function writeChange(writer: MsgpackWriter, change: ResidencyChange): void {
  switch (change.kind) {
    case "stored":
      writer.array(5).str("s").int(placeOf(change.tier));
      writeHash(writer, change.parent);
      writer.bin(bytesOf(change.hashes));
      if (change.tokenHashes === null) writer.nil();
      else writer.bin(bytesOf(change.tokenHashes));
      return;
    case "removed":
      writer.array(3).str("r").int(placeOf(change.tier)).bin(bytesOf(change.hashes));
      return;
    case "cleared":
      writer.array(2).str("c");
      if (change.tier === null) writer.nil();
      else writer.int(placeOf(change.tier));
      return;
    default:
      change satisfies never;
  }
}

export function readChange(reader: MsgpackReader): ResidencyChange {
  const items = reader.array(8);
  const kind = reader.str(1);
  if (kind === "s" && items === 5) {
    const tier = readTier(reader);
    const parent = readHash(reader);
    const hashes = readHashes(reader);
    const tokenHashes = reader.nil() ? null : readHashes(reader);
    if (tokenHashes !== null && tokenHashes.length !== hashes.length) {
      throw new Unreadable("not a token hash for each block");
    }
    return { kind: "stored", tier, parent, hashes, tokenHashes };
  }
  if (kind === "r" && items === 3) {
    return { kind: "removed", tier: readTier(reader), hashes: readHashes(reader) };
  }
  if (kind !== "c" || items !== 2) throw new Unreadable("a change that is not known");
  return { kind: "cleared", tier: reader.nil() ? null : readTier(reader) };
}

export function writeRun(writer: MsgpackWriter, run: ResidencyRun): void {
  writer.array(3).int(placeOf(run.tier));
  writeHash(writer, run.parent);
  writer.bin(bytesOf(run.hashes));
}

export function readRun(reader: MsgpackReader): ResidencyRun {
  if (reader.array(3) !== 3) throw new Unreadable("a run that is none");
  return { tier: readTier(reader), parent: readHash(reader), hashes: readHashes(reader) };
}

/** An upper bound of what `writeChange` writes, to a few bytes. */
export function packedBytes(change: ResidencyChange): number {
  if (change.kind === "cleared") return CHANGE_BYTES;
  const words = change.kind === "stored" && change.tokenHashes !== null ? 2 : 1;
  return CHANGE_BYTES + change.hashes.length * 8 * words;
}

/** Of a change or a run without its hashes. */
export const CHANGE_BYTES = 24;

function placeOf(tier: ResidencyTier): number {
  return RESIDENCY_TIERS.indexOf(tier);
}

function readTier(reader: MsgpackReader): ResidencyTier {
  return RESIDENCY_TIERS[reader.uint(RESIDENCY_TIERS.length - 1)]!;
}

function writeHash(writer: MsgpackWriter, hash: bigint | null): void {
  if (hash === null) writer.nil();
  else writer.int(hash);
}

function readHash(reader: MsgpackReader): bigint | null {
  return reader.nil() ? null : reader.u64();
}

/** Every host that Bun runs on is little-endian. */
function bytesOf(hashes: BigUint64Array): Uint8Array {
  return new Uint8Array(hashes.buffer, hashes.byteOffset, hashes.byteLength);
}

function readHashes(reader: MsgpackReader): BigUint64Array {
  const bytes = reader.bin(RESIDENCY_LIMITS.messageBytesMax);
  if (bytes.length % 8 !== 0) throw new Unreadable("hashes that are not of eight bytes");
  // A copy starts at an address that is a multiple of eight; `slice` of a Buffer is none.
  return new BigUint64Array(new Uint8Array(bytes).buffer);
}
