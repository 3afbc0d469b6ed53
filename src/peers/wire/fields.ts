import { assert } from "../../core/index.ts";
import type { WireReader, WireWriter } from "./bytes.ts";

/**
 * Writes and reads one kind of value. If a value is invalid, `read` reports an error that calls it
 * by the name in the parameter `what`.
 */
export interface Field<T> {
  write(writer: WireWriter, value: T): void;
  read(reader: WireReader, what: string): T;
}

export type Fields = Readonly<Record<string, Field<unknown>>>;
type ValueOf<F> = F extends Field<infer T> ? T : never;
/** Object type with the value of each field. */
export type Struct<F extends Fields> = { readonly [Name in keyof F]: ValueOf<F[Name]> };

export const u8: Field<number> = {
  write: (writer, value) => void writer.u8(value),
  read: (reader, what) => reader.u8(what),
};

export const u16: Field<number> = {
  write: (writer, value) => void writer.u16(value),
  read: (reader, what) => reader.u16(what),
};

export const u32: Field<number> = {
  write: (writer, value) => void writer.u32(value),
  read: (reader, what) => reader.u32(what),
};

export const u64: Field<bigint> = {
  write: (writer, value) => void writer.u64(value),
  read: (reader, what) => reader.u64(what),
};

/** A 64-bit length of at most `max`. */
export function size(max: number): Field<number> {
  return {
    write: (writer, value) => void writer.size(value),
    read: (reader, what) => reader.size(max, what),
  };
}

/** Exactly `length` bytes. Reading copies them. */
export function bytes(length: number): Field<Uint8Array> {
  return {
    write: (writer, value) => void writer.fixed(value, length),
    read: (reader, what) => reader.bytes(length, what),
  };
}

/** All remaining bytes of the record or message. Reading returns a view, not a copy. */
export const rest: Field<Uint8Array> = {
  write: (writer, value) => void writer.raw(value),
  read: (reader) => reader.rest(),
};

/** Restricts a field to values for which `isValid` returns true. */
export function checked<T>(field: Field<T>, isValid: (value: T) => boolean): Field<T> {
  return {
    write: (writer, value) => field.write(writer, value),
    read(reader, what) {
      const value = field.read(reader, what);
      if (!isValid(value)) reader.fail(`${what}: out of range`);
      return value;
    },
  };
}

export function positive(field: Field<number>): Field<number> {
  return checked(field, (value) => value > 0);
}

/** One of the given values, encoded in one byte as its index in `values`. */
export function oneOf<const T>(values: readonly T[]): Field<T> {
  return {
    write: (writer, value) => void writer.u8(values.indexOf(value)),
    read(reader, what) {
      const value = values[reader.u8(what)];
      if (value === undefined) reader.fail(`${what}: unknown`);
      return value ?? values[0];
    },
  };
}

export const flag: Field<boolean> = oneOf([false, true]);

/** Several fields in sequence, as an object. */
export function struct<F extends Fields>(fields: F): Field<Struct<F>> {
  const entries = Object.entries(fields);
  return {
    write(writer, value) {
      for (const [name, field] of entries) field.write(writer, value[name]);
    },
    read(reader) {
      const value: Record<string, unknown> = {};
      for (const [name, field] of entries) value[name] = field.read(reader, name);
      return value as Struct<F>;
    },
  };
}

/** A list of 1 to `max` items: their count in one byte, then the items. */
export function list<T>(item: Field<T>, max: number): Field<readonly T[]> {
  return {
    write(writer, items) {
      writer.u8(items.length);
      for (const one of items) item.write(writer, one);
    },
    read(reader, what) {
      const count = reader.u8(what);
      if (count === 0 || count > max) reader.fail(`${what}: not 1 to ${max}`);
      const items: T[] = [];
      while (items.length < count && reader.ok) items.push(item.read(reader, what));
      return items;
    },
  };
}

interface RecordList<T> {
  readonly item: Field<T>;
  readonly max: number;
  /** Minimum encoded size of one item in bytes, including its length prefix. */
  readonly bytesMin: number;
  /** Names of one item (`what`) and of the list (`many`) in error messages. */
  readonly what: string;
  readonly many: string;
}

/**
 * A list: the count in 32 bits, then each item as a record. Later protocol versions can add fields
 * to an item.
 */
export function records<T>({
  item,
  max,
  bytesMin,
  what,
  many,
}: RecordList<T>): Field<readonly T[]> {
  return {
    write(writer, items) {
      assert(items.length <= max, `at most ${max} ${many} are sent at once`);
      writer.u32(items.length);
      for (const one of items) writer.record(16, () => item.write(writer, one));
    },
    read(reader) {
      const items: T[] = [];
      const count = reader.count(max, bytesMin, what);
      const read = () => item.read(reader, what);
      while (items.length < count && reader.ok) items.push(reader.record(16, what, read));
      return items;
    },
  };
}
