import { crc32, deflateRawSync } from "node:zlib";

/** A file of an archive. */
export interface ZipEntry {
  readonly path: string;
  readonly bytes: Uint8Array;
  readonly executable?: boolean;
}

/** 1980-01-01 00:00, the earliest time of the format: equal contents make equal archives. */
const DOS_DATE = 0x0021;
const VERSION_NEEDED = 20;
const MADE_BY_UNIX = 3 << 8;
const DEFLATE = 8;
const UTF8_NAMES = 0x0800;
const REGULAR_FILE = 0o100000;

interface Placed {
  readonly entry: ZipEntry;
  readonly name: Buffer;
  readonly packed: Buffer;
  readonly crc: number;
  readonly offset: number;
}

/** The fields that the local header and the central directory share. */
function commonFields({ entry, name, packed, crc }: Placed): Buffer {
  const fields = Buffer.alloc(26);
  fields.writeUInt16LE(VERSION_NEEDED, 0);
  fields.writeUInt16LE(UTF8_NAMES, 2);
  fields.writeUInt16LE(DEFLATE, 4);
  fields.writeUInt16LE(0, 6);
  fields.writeUInt16LE(DOS_DATE, 8);
  fields.writeUInt32LE(crc, 10);
  fields.writeUInt32LE(packed.length, 14);
  fields.writeUInt32LE(entry.bytes.length, 18);
  fields.writeUInt16LE(name.length, 22);
  return fields;
}

function localFile(placed: Placed): Buffer {
  const signature = Buffer.from("PK\x03\x04", "latin1");
  return Buffer.concat([signature, commonFields(placed), placed.name, placed.packed]);
}

function directoryEntry(placed: Placed): Buffer {
  const head = Buffer.alloc(6);
  head.write("PK\x01\x02", "latin1");
  head.writeUInt16LE(MADE_BY_UNIX | VERSION_NEEDED, 4);
  const tail = Buffer.alloc(14);
  const mode = REGULAR_FILE | (placed.entry.executable === true ? 0o755 : 0o644);
  tail.writeUInt32LE((mode << 16) >>> 0, 6);
  tail.writeUInt32LE(placed.offset, 10);
  return Buffer.concat([head, commonFields(placed), tail, placed.name]);
}

/**
 * A ZIP archive, below 4 GiB and 65,535 files. The same entries in the same order make the same
 * bytes, on every day and every host.
 */
export function zipOf(entries: readonly ZipEntry[]): Buffer {
  const placed: Placed[] = [];
  const parts: Buffer[] = [];
  let offset = 0;
  for (const entry of entries) {
    const name = Buffer.from(entry.path, "utf8");
    const packed = deflateRawSync(entry.bytes, { level: 9 });
    const one: Placed = { entry, name, packed, crc: crc32(entry.bytes), offset };
    const local = localFile(one);
    placed.push(one);
    parts.push(local);
    offset += local.length;
  }
  const directory = Buffer.concat(placed.map(directoryEntry));
  const end = Buffer.alloc(22);
  end.write("PK\x05\x06", "latin1");
  end.writeUInt16LE(placed.length, 8);
  end.writeUInt16LE(placed.length, 10);
  end.writeUInt32LE(directory.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...parts, directory, end]);
}
