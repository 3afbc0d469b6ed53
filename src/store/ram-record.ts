import { HearthError } from "../core/index.ts";
import type { HoldRow } from "./index/index.ts";
import type { RememberedHolds } from "./pins/index.ts";

/** What a planned restart hands on of the RAM tier, beside the memory itself. */
export interface RamRecord {
  /** The memory this is about: whatever the caller knows it by. */
  readonly arena: string;
  readonly arenaBytes: number;
  readonly extentBytes: number;
  /** Namespace keys in hex; `namespaces` has indices into it. */
  readonly namespaceKeys: readonly string[];
  /** For each of them the identifier of its MAC key; null: it has none, or that is not known. */
  readonly macKeyIds: readonly (string | null)[];
  readonly count: number;
  /** 32 bytes a block; all zero in `parents`: no parent. */
  readonly digests: Uint8Array;
  readonly parents: Uint8Array;
  readonly layers: Uint32Array;
  readonly namespaces: Uint32Array;
  readonly bytes: Uint32Array;
  readonly lastSeen: Uint32Array;
  readonly uses: Uint32Array;
  /** Bit 0: transient. */
  readonly flags: Uint32Array;
  readonly checksums: BigUint64Array;
  /** 16 bytes a block; all zero: it has no MAC. */
  readonly macs: Uint8Array;
  /** By ascending offset in the arena. */
  readonly offsets: Float64Array;
  /** `ALIAS_ROW_BYTES` each: block as u32, length of the name as u32 (8 or 32), the name. */
  readonly aliases: Uint8Array;
  /** Who wants which of them kept; null where a ledger knows, or nobody said. */
  readonly holds: RememberedHolds | null;
}

export const ALIAS_ROW_BYTES = 40;

const MAGIC = "HEARTHRM";
const VERSION = 3;
/** The first version had no holds, the second no MACs; both are read. */
const OLDEST_VERSION = 1;
const HEAD_BYTES = 16;
const SUM_BYTES = 8;
const ALIGN = 8;

/** Columns in the order in which they are written; widths are multiples of four bytes. */
const COLUMNS = [
  ["checksums", 8],
  ["offsets", 8],
  ["digests", 32],
  ["parents", 32],
  ["layers", 4],
  ["namespaces", 4],
  ["bytes", 4],
  ["lastSeen", 4],
  ["uses", 4],
  ["flags", 4],
  ["macs", 16],
] as const satisfies readonly (readonly [keyof RamRecord, number])[];

type Column = (typeof COLUMNS)[number];

/** The columns that records of a version have. */
function columnsOf(version: number): readonly Column[] {
  return version >= 3 ? COLUMNS : COLUMNS.filter(([name]) => name !== "macs");
}

function rowBytesOf(columns: readonly Column[]): number {
  return columns.reduce((sum, [, width]) => sum + width, 0);
}

export function createRamRecord(
  about: Pick<
    RamRecord,
    | "arena"
    | "arenaBytes"
    | "extentBytes"
    | "namespaceKeys"
    | "macKeyIds"
    | "count"
    | "aliases"
    | "holds"
  >,
): RamRecord {
  const { count } = about;
  return {
    ...about,
    checksums: new BigUint64Array(count),
    offsets: new Float64Array(count),
    digests: new Uint8Array(count * 32),
    parents: new Uint8Array(count * 32),
    layers: new Uint32Array(count),
    namespaces: new Uint32Array(count),
    bytes: new Uint32Array(count),
    lastSeen: new Uint32Array(count),
    uses: new Uint32Array(count),
    flags: new Uint32Array(count),
    macs: new Uint8Array(count * 16),
  };
}

/**
 * Magic, version, length of the JSON part, JSON, columns, aliases, blocks of holds, XXH3-64 of all
 * that.
 */
export function encodeRamRecord(record: RamRecord): Uint8Array {
  const { arena, arenaBytes, extentBytes, namespaceKeys, count, aliases } = record;
  const { holds, blocks } = writtenHolds(record.holds);
  const sizes = { count, aliasBytes: aliases.length };
  const names = { namespaceKeys, macKeyIds: record.macKeyIds };
  const about = JSON.stringify({ arena, arenaBytes, extentBytes, ...names, ...sizes, holds });
  const json = new TextEncoder().encode(about);
  const columnsAt = Math.ceil((HEAD_BYTES + json.length) / ALIGN) * ALIGN;
  const aliasesAt = columnsAt + count * rowBytesOf(COLUMNS);
  const holdsAt = aliasesAt + aliases.length;
  const sumAt = holdsAt + blocks.reduce((sum, { length }) => sum + length, 0);
  const out = new Uint8Array(sumAt + SUM_BYTES);
  const view = new DataView(out.buffer);
  out.set(new TextEncoder().encode(MAGIC));
  view.setUint32(8, VERSION, true);
  view.setUint32(12, json.length, true);
  out.set(json, HEAD_BYTES);
  let at = columnsAt;
  for (const [name, width] of COLUMNS) {
    const column = record[name];
    out.set(new Uint8Array(column.buffer, column.byteOffset, count * width), at);
    at += count * width;
  }
  out.set(aliases, aliasesAt);
  at = holdsAt;
  for (const part of blocks) {
    out.set(part, at);
    at += part.length;
  }
  view.setBigUint64(sumAt, Bun.hash.xxHash3(out.subarray(0, sumAt)), true);
  return out;
}

/** Null where a single bit is not as it was written. */
export function decodeRamRecord(from: Uint8Array): RamRecord | null {
  if (from.length < HEAD_BYTES + SUM_BYTES) return null;
  const bytes = from.slice();
  const view = new DataView(bytes.buffer);
  const sumAt = bytes.length - SUM_BYTES;
  if (view.getBigUint64(sumAt, true) !== Bun.hash.xxHash3(bytes.subarray(0, sumAt))) return null;
  const magic = new TextDecoder().decode(bytes.subarray(0, 8));
  const version = view.getUint32(8, true);
  if (magic !== MAGIC || version < OLDEST_VERSION || version > VERSION) return null;
  const jsonBytes = view.getUint32(12, true);
  const about = aboutOf(bytes.subarray(HEAD_BYTES, HEAD_BYTES + jsonBytes));
  let at = Math.ceil((HEAD_BYTES + jsonBytes) / ALIGN) * ALIGN;
  const { aliasBytes, holds: written, macKeyIds = [], ...named } = about;
  const columns = columnsOf(version);
  const aliasesAt = at + about.count * rowBytesOf(columns);
  const holdsAt = aliasesAt + aliasBytes;
  const holds = readHolds(written ?? null, bytes.subarray(holdsAt, sumAt));
  if (holds === "damaged") return null;
  const record = createRamRecord({
    ...{ ...named, macKeyIds, holds },
    aliases: bytes.slice(aliasesAt, holdsAt),
  });
  for (const [name, width] of columns) {
    const column = record[name];
    new Uint8Array(column.buffer).set(bytes.subarray(at, at + about.count * width));
    at += about.count * width;
  }
  return record;
}

/** Holds as the JSON part has them: of the blocks only how many bytes they are. */
interface WrittenHolds {
  readonly lastSeen: RememberedHolds["lastSeen"];
  readonly rows: readonly (Omit<HoldRow, "blocks"> & { readonly blockBytes: number })[];
}

function writtenHolds(from: RememberedHolds | null): {
  readonly holds: WrittenHolds | null;
  readonly blocks: readonly Uint8Array[];
} {
  if (from === null) return { holds: null, blocks: [] };
  const rows = from.holds.map(({ blocks, ...row }) => ({ ...row, blockBytes: blocks.length }));
  const blocks = from.holds.map((row) => row.blocks);
  return { holds: { lastSeen: from.lastSeen, rows }, blocks };
}

function readHolds(
  written: WrittenHolds | null,
  blocks: Uint8Array,
): RememberedHolds | null | "damaged" {
  let at = 0;
  const holds = (written?.rows ?? []).map(({ blockBytes, ...row }): HoldRow => {
    at += blockBytes;
    return { ...row, purges: row.purges === true, blocks: blocks.slice(at - blockBytes, at) };
  });
  if (at !== blocks.length) return "damaged";
  return written === null ? null : { holds, lastSeen: written.lastSeen };
}

type About = Omit<Parameters<typeof createRamRecord>[0], "aliases" | "holds" | "macKeyIds"> & {
  /** Left out by earlier versions. */
  readonly macKeyIds?: RamRecord["macKeyIds"];
  readonly aliasBytes: number;
  readonly holds?: WrittenHolds | null;
};

/** Its checksum was right: what it says is what an agent of its version wrote. */
function aboutOf(json: Uint8Array): About {
  try {
    return JSON.parse(new TextDecoder().decode(json));
  } catch (cause) {
    throw new HearthError("INTERNAL", "a handover record with a right checksum is no JSON", {
      cause,
    });
  }
}
