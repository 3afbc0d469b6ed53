import { STRUCTS } from "./abi.gen.ts";

/** Reads and writes the boundary's structs by the offsets the library was compiled with. */

export type StructName = keyof typeof STRUCTS;

type FieldValue<Type extends string> = Type extends "u64"
  ? bigint
  : Type extends "u32" | "i32"
    ? number
    : Uint8Array;

type Fields<Name extends StructName> = (typeof STRUCTS)[Name]["fields"];

/** A struct as an object: u64 as bigint, u32 and i32 as number, byte arrays as Uint8Array. */
export type StructValue<Name extends StructName> = {
  [Key in keyof Fields<Name>]: Fields<Name>[Key] extends { type: infer Type extends string }
    ? FieldValue<Type>
    : never;
};

interface Field {
  readonly offset: number;
  readonly type: string;
}

function fieldsOf(name: StructName): [string, Field][] {
  return Object.entries(STRUCTS[name].fields) as [string, Field][];
}

function bytesLength(type: string): number {
  return Number(type.slice("bytes".length));
}

export function writeStruct<Name extends StructName>(
  name: Name,
  value: StructValue<Name>,
  into: Uint8Array,
): void {
  const view = new DataView(into.buffer, into.byteOffset, STRUCTS[name].size);
  const values = value as Record<string, bigint | number | Uint8Array>;
  for (const [key, { offset, type }] of fieldsOf(name)) {
    const item = values[key];
    if (type === "u64") view.setBigUint64(offset, item as bigint, true);
    else if (type === "u32") view.setUint32(offset, item as number, true);
    else if (type === "i32") view.setInt32(offset, item as number, true);
    else into.set((item as Uint8Array).subarray(0, bytesLength(type)), offset);
  }
}

export function readStruct<Name extends StructName>(
  name: Name,
  from: Uint8Array,
): StructValue<Name> {
  const view = new DataView(from.buffer, from.byteOffset, STRUCTS[name].size);
  const values: Record<string, bigint | number | Uint8Array> = {};
  for (const [key, { offset, type }] of fieldsOf(name)) {
    if (type === "u64") values[key] = view.getBigUint64(offset, true);
    else if (type === "u32") values[key] = view.getUint32(offset, true);
    else if (type === "i32") values[key] = view.getInt32(offset, true);
    else values[key] = from.slice(offset, offset + bytesLength(type));
  }
  return values as StructValue<Name>;
}

/** Writes a whole number below 2^53 as u64 at a byte offset: without a bigint. */
export function writeU64(words: Uint32Array, at: number, value: number): void {
  words[at / 4] = value;
  words[at / 4 + 1] = value / 2 ** 32;
}
