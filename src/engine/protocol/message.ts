import { assert } from "../../core/index.ts";
import {
  beginReply,
  beginRequest,
  checkFixed,
  checkItems,
  copyIn,
  type Decoded,
  decoded,
  type Frame,
  malformed,
  type Output,
  type Refusal,
  readSafeU64,
  refused,
  writeSafeU64,
} from "./frame.ts";
import { HEADER_BYTES, type Op, opName } from "./layout.ts";

/**
 * Declares messages by their fields, in the order of the wire. Encoder and decoder derive from one
 * declaration. Items are written field by field (column by column), so that each loop handles only
 * one kind of field.
 */

/** A kind of field: its length, how it is written, and how it is read and checked. */
export interface Kind<Value> {
  readonly bytes: number;
  /** Text of the refusal if `read` cannot read the field. */
  readonly problem: string;
  write(output: Output, at: number, value: Value): void;
  /** Reads the field at offset `at`. Undefined if the bytes are not a value of this kind. */
  read(frame: Frame, at: number): Value | undefined;
}

/**
 * A kind of field that items may have. The fields of consecutive items lie `stride` bytes apart.
 */
interface ColumnKind<Value> extends Kind<Value> {
  /** Writes the first `count` entries of the column. */
  writeColumn(output: Output, at: number, stride: number, column: Column, count: number): void;
  /**
   * Reads one column entry for each of the frame's items. Returns false if one has no value of this
   * kind.
   */
  readColumn(frame: Frame, at: number, stride: number, column: Column): boolean;
}

/**
 * The array of one field of all items. A field of bytes takes as many array entries as it has
 * bytes.
 */
type Column = Uint8Array | Uint32Array | Float64Array | BigUint64Array;

const VALID = { problem: "" } as const;
const UNSAFE = "must be below 2^53";

export const u32: ColumnKind<number> = bits(0xffff_ffff);

export const u16: Kind<number> = {
  ...VALID,
  bytes: 2,
  write: ({ view }, at, value) => view.setUint16(at, value, true),
  read: ({ view }, at) => view.getUint16(at, true),
};

/** A u64. Its columns are copied as 32-bit halves, which avoids allocating bigints. */
export const u64: ColumnKind<bigint> = {
  ...VALID,
  bytes: 8,
  write: ({ view }, at, value) => view.setBigUint64(at, value, true),
  read: ({ view }, at) => view.getBigUint64(at, true),
  writeColumn({ view }, start, stride, column, count) {
    const halves = halvesOf(column, count);
    for (let i = 0, at = start; i < count; i++, at += stride) {
      view.setUint32(at, halves[2 * i], true);
      view.setUint32(at + 4, halves[2 * i + 1], true);
    }
  },
  readColumn({ view, count }, start, stride, column) {
    const halves = halvesOf(column, count);
    for (let i = 0, at = start; i < count; i++, at += stride) {
      halves[2 * i] = view.getUint32(at, true);
      halves[2 * i + 1] = view.getUint32(at + 4, true);
    }
    return true;
  },
};

/** Returns the 32-bit halves of u64s, low half first. */
function halvesOf({ buffer, byteOffset }: Column, count: number): Uint32Array {
  return new Uint32Array(buffer, byteOffset, 2 * count);
}

/** A u64 below 2^53, as a number. */
export const size: ColumnKind<number> = {
  bytes: 8,
  problem: UNSAFE,
  write: ({ view }, at, value) => writeSafeU64(view, at, value),
  read: ({ view }, at) => readSafeU64(view, at) ?? undefined,
  writeColumn({ view }, start, stride, column, count) {
    const sizes = column as Float64Array;
    for (let i = 0, at = start; i < count; i++, at += stride) writeSafeU64(view, at, sizes[i]);
  },
  readColumn({ view, count }, start, stride, column) {
    for (let i = 0, at = start; i < count; i++, at += stride) {
      const value = readSafeU64(view, at);
      if (value === null) return false;
      column[i] = value;
    }
    return true;
  },
};

/** A u32 that must be zero. */
export const reserved: ColumnKind<0> = {
  bytes: 4,
  problem: "reserved fields and padding must be zero",
  write: ({ view }, at) => view.setUint32(at, 0, true),
  read: ({ view }, at) => (view.getUint32(at, true) === 0 ? 0 : undefined),
  writeColumn({ view }, start, stride, _column, count) {
    for (let i = 0, at = start; i < count; i++, at += stride) view.setUint32(at, 0, true);
  },
  readColumn({ view, count }, start, stride) {
    let used = 0;
    for (let i = 0, at = start; i < count; i++, at += stride) used |= view.getUint32(at, true);
    return used === 0;
  },
};

/** `length` bytes. A decoded value is a copy. */
export function bytes(length: number): ColumnKind<Uint8Array> {
  return {
    ...VALID,
    bytes: length,
    write(output, at, value) {
      assert(value.length === length, "a field of bytes has its length");
      output.bytes.set(value, at);
    },
    read: (frame, at) => frame.bytes.slice(at, at + length),
    writeColumn(output, start, stride, column, count) {
      const from = column as Uint8Array;
      if (stride === length) {
        copyIn(from, count * length, output.bytes, start);
        return;
      }
      const into = output.bytes;
      for (let i = 0, at = start, next = 0; i < count; i++, at += stride)
        for (let k = 0; k < length; k++) into[at + k] = from[next++];
    },
    readColumn({ bytes: from, count }, start, stride, column) {
      const into = column as Uint8Array;
      if (stride === length) into.set(from.subarray(start, start + count * length), 0);
      else
        for (let i = 0, at = start, next = 0; i < count; i++, at += stride)
          for (let k = 0; k < length; k++) into[next++] = from[at + k];
      return true;
    },
  };
}

/** A u32 in which only the bits of `known` may be set. */
export function bits(known: number): ColumnKind<number> {
  return {
    bytes: 4,
    problem: "undefined bits are set",
    write: ({ view }, at, value) => view.setUint32(at, value, true),
    read({ view }, at) {
      const value = view.getUint32(at, true);
      return (value & ~known) === 0 ? value : undefined;
    },
    writeColumn({ view }, start, stride, column, count) {
      const words = column as Uint32Array;
      for (let i = 0, at = start; i < count; i++, at += stride) view.setUint32(at, words[i], true);
    },
    readColumn({ view, count }, start, stride, column) {
      let undefinedBits = 0;
      for (let i = 0, at = start; i < count; i++, at += stride) {
        const value = view.getUint32(at, true);
        undefinedBits |= value & ~known;
        column[i] = value;
      }
      return undefinedBits === 0;
    },
  };
}

/** A boolean as a u32: 0, or one certain bit. */
export function flag(
  bit: number,
  { write, read, bytes: length }: Kind<number> = u32,
): Kind<boolean> {
  return {
    bytes: length,
    problem: "undefined bits are set",
    write: (output, at, value) => write(output, at, value ? bit : 0),
    read(frame, at) {
      const value = read(frame, at)!;
      return (value & ~bit) === 0 ? value !== 0 : undefined;
    },
  };
}

/** A u32 from `min` to `max`: the numbers of an enumeration without gaps. */
export function within<Value extends number>(min: Value, max: Value): ColumnKind<Value> {
  return {
    ...(u32 as ColumnKind<Value>),
    problem: `undefined: use ${min} to ${max}`,
    read({ view }, at) {
      const value = view.getUint32(at, true);
      return value >= min && value <= max ? (value as Value) : undefined;
    },
    readColumn({ view, count }, start, stride, column) {
      let isValid = true;
      for (let i = 0, at = start; i < count; i++, at += stride) {
        const value = view.getUint32(at, true);
        if (value < min || value > max) isValid = false;
        column[i] = value;
      }
      return isValid;
    },
  };
}

/** Fields by name. The field `reserved` has no value. */
export type Layout = Readonly<Record<string, Kind<unknown>>>;

export type Values<Of extends Layout> = {
  -readonly [Name in keyof Of as Name extends "reserved" ? never : Name]: Of[Name] extends Kind<
    infer Value
  >
    ? Value
    : never;
};

interface Field {
  readonly name: string;
  readonly kind: Kind<unknown>;
  /** True if the message's layer number is stored with its items, not among its values. */
  readonly isOfItems: boolean;
}

/** A sequence of fields that follow each other without gaps. */
export class Fields<Of extends Layout> {
  readonly bytes: number;
  readonly #all: readonly Field[];

  constructor(layout: Of) {
    this.#all = Object.entries(layout).map(([name, kind]) => {
      return { name, kind, isOfItems: name === "layer" };
    });
    this.bytes = this.#all.reduce((sum, { kind }) => sum + kind.bytes, 0);
  }

  /** Returns an object whose values `read` fills. */
  empty(): Values<Of> {
    return {} as Values<Of>;
  }

  write(output: Output, start: number, values: object, items: object = values): void {
    let at = start;
    for (const { name, kind, isOfItems } of this.#all) {
      const from = (isOfItems ? items : values) as Record<string, unknown>;
      kind.write(output, at, from[name]);
      at += kind.bytes;
    }
  }

  read(frame: Frame, start: number, into: object, items: object = into): Refusal | null {
    let at = start;
    for (const { name, kind, isOfItems } of this.#all) {
      const value = kind.read(frame, at);
      if (value === undefined) return refusalOf(frame, name, kind);
      if (kind !== reserved) ((isOfItems ? items : into) as Record<string, unknown>)[name] = value;
      at += kind.bytes;
    }
    return null;
  }
}

function refusalOf(frame: Frame, name: string, { problem }: Kind<unknown>): Refusal {
  return malformed(`${opName(frame.op)}: ${name}: ${problem}`);
}

/** Item fields by name. The field `reserved` has no column. */
type ItemLayout = Readonly<Record<string, ColumnKind<unknown>>>;

/** The fields of items. Each field has a column, except `reserved`. */
export class ColumnFields {
  readonly bytes: number;
  readonly #all: readonly { readonly name: string; readonly kind: ColumnKind<unknown> }[];

  constructor(layout: ItemLayout) {
    this.#all = Object.entries(layout).map(([name, kind]) => ({ name, kind }));
    this.bytes = this.#all.reduce((sum, { kind }) => sum + kind.bytes, 0);
  }

  /** Writes entry `i` of each column as item `i` of the frame. */
  write(output: Output, start: number, items: { readonly count: number }): void {
    const columns = items as unknown as Readonly<Record<string, Column>>;
    let at = start;
    for (const { name, kind } of this.#all) {
      kind.writeColumn(output, at, this.bytes, columns[name], items.count);
      at += kind.bytes;
    }
  }

  /** Reads the frame's items into the first entries of each column. */
  read(frame: Frame, start: number, into: { count: number }): Refusal | null {
    const columns = into as unknown as Readonly<Record<string, Column>>;
    let at = start;
    for (const { name, kind } of this.#all) {
      if (!kind.readColumn(frame, at, this.bytes, columns[name]))
        return refusalOf(frame, name, kind);
      at += kind.bytes;
    }
    into.count = frame.count;
    return null;
  }
}

/** Begins the frame of a message and returns the offset of its body. */
type Begin = (
  output: Output,
  requestId: number,
  count: number,
  bodyBytes: number,
  noReply?: boolean,
) => number;

/** Returns a `Begin` for requests of this operation. */
export const requestOf =
  (op: Op): Begin =>
  (output, requestId, count, bodyBytes, noReply) =>
    beginRequest(output, op, requestId, count, bodyBytes, noReply);

/** Returns a `Begin` for replies to this operation. */
export const replyTo =
  (op: Op): Begin =>
  (output, requestId, count, bodyBytes) =>
    beginReply(output, op, requestId, count, bodyBytes);

/** Checks values that are valid one by one for contradictions. Returns the problem, or null. */
type Check<Of extends Layout> = (values: Values<Of>) => string | null;

function problemOf<Of extends Layout>(
  frame: Frame,
  values: Values<Of>,
  check: Check<Of> | undefined,
): Refusal | null {
  const problem = check?.(values) ?? null;
  return problem === null ? null : malformed(`${opName(frame.op)}: ${problem}`);
}

/** Declares a message of fixed length, whose header has item count `count`. */
export function fixedMessage<Of extends Layout>(
  begin: Begin,
  layout: Of,
  { count = 0, check }: { readonly count?: number; readonly check?: Check<Of> } = {},
) {
  const fields = new Fields(layout);
  /** Reads the frame into `into`, or returns why the frame is refused. */
  const fill = (frame: Frame, into: Values<Of>): Refusal | null =>
    checkFixed(frame, count, fields.bytes) ??
    fields.read(frame, frame.body, into) ??
    problemOf(frame, into, check);
  return {
    encode(output: Output, requestId: number, values: Readonly<Values<Of>>, noReply?: boolean) {
      fields.write(output, begin(output, requestId, count, fields.bytes, noReply), values);
    },
    fill,
    decode(frame: Frame): Decoded<Values<Of>> {
      const values = fields.empty();
      const refusal = fill(frame, values);
      return refusal === null ? decoded(values) : refused(refusal);
    },
  };
}

/**
 * Declares a message of the fields `head`, followed by at most `max` items, which are decoded as a
 * list under `name`.
 */
export function listMessage<Head extends Layout, Item extends Layout, Name extends string>(
  begin: Begin,
  name: Name,
  layouts: { readonly head: Head; readonly item: Item },
  { max, check }: { readonly max: number; readonly check?: Check<Item> },
) {
  type Message = Values<Head> & { [Key in Name]: readonly Readonly<Values<Item>>[] };
  const head = new Fields(layouts.head);
  const item = new Fields(layouts.item);
  return {
    /** Returns how many items fit in a frame of this size. */
    itemsIn: (frameBytesMax: number) =>
      Math.floor((frameBytesMax - HEADER_BYTES - head.bytes) / item.bytes),
    encode(output: Output, requestId: number, values: Readonly<Message>, noReply?: boolean) {
      const items = values[name];
      const bodyBytes = head.bytes + items.length * item.bytes;
      let at = begin(output, requestId, items.length, bodyBytes, noReply);
      head.write(output, at, values);
      at += head.bytes;
      for (const one of items) {
        item.write(output, at, one);
        at += item.bytes;
      }
    },
    decode(frame: Frame, itemsMax = max): Decoded<Message> {
      const values = head.empty();
      const items: Values<Item>[] = [];
      const bad =
        checkItems(frame, head.bytes, item.bytes, itemsMax) ?? head.read(frame, frame.body, values);
      if (bad !== null) return refused(bad);
      for (let at = frame.body + head.bytes; at < frame.end; at += item.bytes) {
        const one = item.empty();
        const wrong = item.read(frame, at, one) ?? problemOf(frame, one, check);
        if (wrong !== null) return refused(wrong);
        items.push(one);
      }
      return decoded({ ...values, [name]: items } as Message);
    },
  };
}

/** Layouts of a message: every value and every column must have a field. */
interface ColumnsLayouts<Head, Items> {
  readonly head: Layout & { readonly [Name in keyof Head]-?: Kind<unknown> };
  readonly item: ItemLayout & {
    readonly [Name in Exclude<keyof Items, "count" | "layer">]: ColumnKind<unknown>;
  };
}

interface ColumnsOptions<Items> {
  /** Returns how many items fit in the caller's columns. */
  capacity(into: Items): number;
  /** Writes zeros to the fields that an item does not use. */
  clear?(output: Output, start: number, stride: number, items: Readonly<Items>): void;
  /** Refuses items whose fields contradict each other. */
  check?(frame: Frame, start: number, stride: number, into: Items): Refusal | null;
}

/**
 * Declares a message of the fields `head`, followed by items that are read into and written from
 * the caller's columns.
 */
export function columnsMessage<Head extends object, Items extends { count: number }>(
  begin: Begin,
  layouts: ColumnsLayouts<Head, Items>,
  { capacity, clear, check }: ColumnsOptions<Items>,
) {
  const head = new Fields(layouts.head);
  const item = new ColumnFields(layouts.item);
  return {
    encode(
      output: Output,
      requestId: number,
      values: Readonly<Head>,
      items: Readonly<Items>,
      noReply?: boolean,
    ) {
      const { count } = items;
      const at = begin(output, requestId, count, head.bytes + count * item.bytes, noReply);
      head.write(output, at, values, items);
      item.write(output, at + head.bytes, items);
      clear?.(output, at + head.bytes, item.bytes, items);
    },
    decode(frame: Frame, values: Head, into: Items): Refusal | null {
      const start = frame.body + head.bytes;
      return (
        checkItems(frame, head.bytes, item.bytes, capacity(into)) ??
        head.read(frame, frame.body, values, into) ??
        item.read(frame, start, into) ??
        check?.(frame, start, item.bytes, into) ??
        null
      );
    },
  };
}

const NO_VALUES = Object.freeze({});

/** Declares a message like `columnsMessage`, but with items only. */
export function itemsMessage<Items extends { count: number }>(
  begin: Begin,
  layouts: ColumnsLayouts<object, Items>,
  options: ColumnsOptions<Items>,
) {
  const { encode, decode } = columnsMessage<object, Items>(begin, layouts, options);
  return {
    encode: (output: Output, requestId: number, items: Readonly<Items>, noReply?: boolean) =>
      encode(output, requestId, NO_VALUES, items, noReply),
    decode: (frame: Frame, into: Items) => decode(frame, NO_VALUES, into),
  };
}
