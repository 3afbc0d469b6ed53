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
 * declaration. Fields of items are written column by column, so that each loop handles one kind.
 */

/** How one field is written, and how it is read and checked. */
export interface Kind<Value> {
  readonly bytes: number;
  /** Reason to refuse a field that `read` cannot read. */
  readonly problem: string;
  write(output: Output, at: number, value: Value): void;
  /** Undefined: the bytes are not a value of this kind. */
  read(frame: Frame, at: number): Value | undefined;
}

/** A field that items may have, `stride` bytes apart. */
interface ColumnKind<Value> extends Kind<Value> {
  /** Writes the first `count` entries of the column. */
  writeColumn(output: Output, at: number, stride: number, column: Column, count: number): void;
  /** Reads an entry for each of the frame's items. False: one has no value of this kind. */
  readColumn(frame: Frame, at: number, stride: number, column: Column): boolean;
}

/** One entry of each item; of bytes as many as the kind has. */
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

/** The columns of a u64 are copied as halves, because bigints would be allocated. */
export const u64: ColumnKind<bigint> = {
  ...VALID,
  bytes: 8,
  write: ({ view }, at, value) => view.setBigUint64(at, value, true),
  read: ({ view }, at) => view.getBigUint64(at, true),
  writeColumn({ view }, start, stride, column, count) {
    const halves = halvesOf(column, count);
    for (let i = 0, at = start; i < count; i++, at += stride) {
      view.setUint32(at, halves[2 * i]!, true);
      view.setUint32(at + 4, halves[2 * i + 1]!, true);
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

/** The 32-bit halves of u64s, low half first. */
function halvesOf({ buffer, byteOffset }: Column, count: number): Uint32Array {
  return new Uint32Array(buffer, byteOffset, 2 * count);
}

/** A u64 below 2^53. */
export const size: ColumnKind<number> = {
  bytes: 8,
  problem: UNSAFE,
  write: ({ view }, at, value) => writeSafeU64(view, at, value),
  read: ({ view }, at) => readSafeU64(view, at) ?? undefined,
  writeColumn({ view }, start, stride, column, count) {
    const sizes = column as Float64Array;
    for (let i = 0, at = start; i < count; i++, at += stride) writeSafeU64(view, at, sizes[i]!);
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
        for (let k = 0; k < length; k++) into[at + k] = from[next++]!;
    },
    readColumn({ bytes: from, count }, start, stride, column) {
      const into = column as Uint8Array;
      if (stride === length) into.set(from.subarray(start, start + count * length), 0);
      else
        for (let i = 0, at = start, next = 0; i < count; i++, at += stride)
          for (let k = 0; k < length; k++) into[next++] = from[at + k]!;
      return true;
    },
  };
}

/** A u32 with no other bits than those of `known`. */
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
      for (let i = 0, at = start; i < count; i++, at += stride) view.setUint32(at, words[i]!, true);
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

/** A u32 with at most one bit. */
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
  /** The layer of a message belongs to its items. */
  readonly isOfItems: boolean;
}

/** Fields that lie one behind the other. */
export class Fields<Of extends Layout> {
  readonly bytes: number;
  readonly #all: readonly Field[];

  constructor(layout: Of) {
    this.#all = Object.entries(layout).map(([name, kind]) => {
      return { name, kind, isOfItems: name === "layer" };
    });
    this.bytes = this.#all.reduce((sum, { kind }) => sum + kind.bytes, 0);
  }

  /** Values for `read` to fill. */
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

/** Columns by name. The column `reserved` does not exist. */
type ItemLayout = Readonly<Record<string, ColumnKind<unknown>>>;

/** Fields of items, each of which has a column. */
export class ColumnFields {
  readonly bytes: number;
  readonly #all: readonly { readonly name: string; readonly kind: ColumnKind<unknown> }[];

  constructor(layout: ItemLayout) {
    this.#all = Object.entries(layout).map(([name, kind]) => ({ name, kind }));
    this.bytes = this.#all.reduce((sum, { kind }) => sum + kind.bytes, 0);
  }

  /** Writes entry `i` of each column as item `i`. */
  write(output: Output, start: number, items: { readonly count: number }): void {
    const columns = items as unknown as Readonly<Record<string, Column>>;
    let at = start;
    for (const { name, kind } of this.#all) {
      kind.writeColumn(output, at, this.bytes, columns[name]!, items.count);
      at += kind.bytes;
    }
  }

  /** Fills the first entries of each column with the frame's items. */
  read(frame: Frame, start: number, into: { count: number }): Refusal | null {
    const columns = into as unknown as Readonly<Record<string, Column>>;
    let at = start;
    for (const { name, kind } of this.#all) {
      if (!kind.readColumn(frame, at, this.bytes, columns[name]!))
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

/** Frames of requests with this operation. */
export const requestOf =
  (op: Op): Begin =>
  (output, requestId, count, bodyBytes, noReply) =>
    beginRequest(output, op, requestId, count, bodyBytes, noReply);

/** Frames of replies to this operation. */
export const replyTo =
  (op: Op): Begin =>
  (output, requestId, count, bodyBytes) =>
    beginReply(output, op, requestId, count, bodyBytes);

/** Finds a contradiction between values that are valid one by one; null: none. */
type Check<Of extends Layout> = (values: Values<Of>) => string | null;

function problemOf<Of extends Layout>(
  frame: Frame,
  values: Values<Of>,
  check: Check<Of> | undefined,
): Refusal | null {
  const problem = check?.(values) ?? null;
  return problem === null ? null : malformed(`${opName(frame.op)}: ${problem}`);
}

/** A message of fixed length, whose header counts `count` items. */
export function fixedMessage<Of extends Layout>(
  begin: Begin,
  layout: Of,
  { count = 0, check }: { readonly count?: number; readonly check?: Check<Of> } = {},
) {
  const fields = new Fields(layout);
  /** Fills `into`, or returns why the frame is refused. */
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

/** A message of `head`, followed by at most `max` items, as a list under `name`. */
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
    /** How many items fit a frame of this size. */
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

/** Each value and each column has a field. */
interface ColumnsLayouts<Head, Items> {
  readonly head: Layout & { readonly [Name in keyof Head]-?: Kind<unknown> };
  readonly item: ItemLayout & {
    readonly [Name in Exclude<keyof Items, "count" | "layer">]: ColumnKind<unknown>;
  };
}

interface ColumnsOptions<Items> {
  /** Items that fit the columns. */
  capacity(into: Items): number;
  /** Clears the fields that an item does not have. */
  clear?(output: Output, start: number, stride: number, items: Readonly<Items>): void;
  /** Refuses items whose fields contradict each other. */
  check?(frame: Frame, start: number, stride: number, into: Items): Refusal | null;
}

/**
 * A message of `head`, followed by items that are columns of the caller's.
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

/** As `columnsMessage`, without values beside the items. */
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
