import { WIRE_VERSION } from "./layout.ts";
import type { WireReader } from "./wire-reader.ts";
import { WireWriter } from "./wire-writer.ts";

/** The first eight bytes of every message: version, what it is, and flags, none of them so far. */
export function beginMessage(op: number, bytes?: number): WireWriter {
  return new WireWriter(bytes).u16(WIRE_VERSION).u16(op).u32(0);
}

/** Reads the first eight bytes; what the message is. */
export function readEnvelope(reader: WireReader): number {
  reader.version("version");
  const op = reader.u16("operation");
  reader.flags(0, "message");
  return op;
}

/** Reads a number of records. `bytesMin`: each has at least so many, its length included. */
export function readItems<T>(
  reader: WireReader,
  max: number,
  bytesMin: number,
  what: string,
  read: () => T,
): T[] {
  const items: T[] = [];
  const count = reader.count(max, bytesMin, what);
  for (let i = 0; i < count && reader.ok; i++) items.push(reader.record(16, what, read));
  return items;
}

export function writeItems<T>(
  writer: WireWriter,
  items: readonly T[],
  write: (item: T) => void,
): void {
  writer.u32(items.length);
  for (const item of items) writer.record(16, () => write(item));
}
