import { HearthError } from "../core/index.ts";

/** What a planned restart hands on of the RAM tier, beside the memory itself. */
export interface RamRecord {
  /** The memory this is about: whatever the caller knows it by. */
  readonly arena: string;
  readonly arenaBytes: number;
  readonly extentBytes: number;
  /** Namespace keys in hex; `namespaces` has indices into it. */
  readonly namespaceKeys: readonly string[];
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
  /** By ascending offset in the arena. */
  readonly offsets: Float64Array;
  /** `ALIAS_ROW_BYTES` each: block as u32, length of the name as u32 (8 or 32), the name. */
  readonly aliases: Uint8Array;
}

export const ALIAS_ROW_BYTES = 40;

const MAGIC = "HEARTHRM";
const VERSION = 1;
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
] as const satisfies readonly (readonly [keyof RamRecord, number])[];

const ROW_BYTES = COLUMNS.reduce((sum, [, width]) => sum + width, 0);

export function createRamRecord(
  about: Pick<
    RamRecord,
    "arena" | "arenaBytes" | "extentBytes" | "namespaceKeys" | "count" | "aliases"
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
  };
}

/** Magic, version, length of the JSON part, JSON, columns, aliases, XXH3-64 of all that. */
export function encodeRamRecord(record: RamRecord): Uint8Array {
  const { arena, arenaBytes, extentBytes, namespaceKeys, count, aliases } = record;
  const sizes = { count, aliasBytes: aliases.length };
  const about = JSON.stringify({ arena, arenaBytes, extentBytes, namespaceKeys, ...sizes });
  const json = new TextEncoder().encode(about);
  const columnsAt = Math.ceil((HEAD_BYTES + json.length) / ALIGN) * ALIGN;
  const aliasesAt = columnsAt + count * ROW_BYTES;
  const sumAt = aliasesAt + aliases.length;
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
  if (magic !== MAGIC || view.getUint32(8, true) !== VERSION) return null;
  const jsonBytes = view.getUint32(12, true);
  const about = aboutOf(bytes.subarray(HEAD_BYTES, HEAD_BYTES + jsonBytes));
  let at = Math.ceil((HEAD_BYTES + jsonBytes) / ALIGN) * ALIGN;
  const { aliasBytes, ...named } = about;
  const aliasesAt = at + about.count * ROW_BYTES;
  if (aliasesAt + aliasBytes !== sumAt) return null;
  const record = createRamRecord({ ...named, aliases: bytes.slice(aliasesAt, sumAt) });
  for (const [name, width] of COLUMNS) {
    const column = record[name];
    new Uint8Array(column.buffer).set(bytes.subarray(at, at + about.count * width));
    at += about.count * width;
  }
  return record;
}

/** Its checksum was right: what it says is what an agent of this version wrote. */
function aboutOf(
  json: Uint8Array,
): Omit<Parameters<typeof createRamRecord>[0], "aliases"> & { readonly aliasBytes: number } {
  try {
    return JSON.parse(new TextDecoder().decode(json));
  } catch (cause) {
    throw new HearthError("INTERNAL", "a handover record with a right checksum is no JSON", {
      cause,
    });
  }
}
