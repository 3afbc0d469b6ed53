import { WHY_BYTES_MAX } from "./layout.ts";
import type { WireReader } from "./wire-reader.ts";
import { utf8Bytes, type WireWriter } from "./wire-writer.ts";

const CONTROLS = /\p{Cc}+/gu;

/** A reason for people: a length in 16 bits, then one line, cut where it is too long. */
export function writeWhy(writer: WireWriter, why: string): void {
  let line = why.toWellFormed().replace(CONTROLS, " ");
  let bytes = utf8Bytes(line);
  while (bytes.length > WHY_BYTES_MAX) {
    line = line.slice(0, Math.floor((line.length * WHY_BYTES_MAX) / bytes.length)).toWellFormed();
    bytes = utf8Bytes(line);
  }
  writer.u16(bytes.length).raw(bytes);
}

export function readWhy(reader: WireReader): string {
  const length = reader.u16("reason");
  if (length > WHY_BYTES_MAX) reader.fail(`reason: more than ${WHY_BYTES_MAX} bytes`);
  return reader.utf8(length, "reason");
}
