import { assert } from "../../core/index.ts";
import {
  beginReply,
  beginRequest,
  checkFixed,
  checkItems,
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
 * declaration. The messages of the hot path are written by hand in `blocks.ts`: a loop over fields
 * costs more than they do.
 */

/** How one field is written, and how it is read and checked. */
export interface Kind<Value> {
  readonly bytes: number;
  /** What is wrong with a field that `read` refuses. */
  readonly problem: string;
  write(output: Output, at: number, value: Value): void;
  /** Undefined: the bytes are not a value of this kind. */
  read(frame: Frame, at: number): Value | undefined;
}

const VALID = { problem: "" } as const;
const UNSAFE = "must be below 2^53";
const UNDEFINED_BITS = "undefined bits are set";

export const u32: Kind<number> = {
  ...VALID,
  bytes: 4,
  write: ({ view }, at, value) => view.setUint32(at, value, true),
  read: ({ view }, at) => view.getUint32(at, true),
};

export const u16: Kind<number> = {
  ...VALID,
  bytes: 2,
  write: ({ view }, at, value) => view.setUint16(at, value, true),
  read: ({ view }, at) => view.getUint16(at, true),
};

export const u64: Kind<bigint> = {
  ...VALID,
  bytes: 8,
  write: ({ view }, at, value) => view.setBigUint64(at, value, true),
  read: ({ view }, at) => view.getBigUint64(at, true),
};

/** A u64 below 2^53. */
export const size: Kind<number> = {
  bytes: 8,
  problem: UNSAFE,
  write: ({ view }, at, value) => writeSafeU64(view, at, value),
  read: ({ view }, at) => readSafeU64(view, at) ?? undefined,
};

/** A u32 that must be zero. */
export const reserved: Kind<0> = {
  bytes: 4,
  problem: "reserved fields and padding must be zero",
  write: ({ view }, at) => view.setUint32(at, 0, true),
  read: ({ view }, at) => (view.getUint32(at, true) === 0 ? 0 : undefined),
};

/** `length` bytes. A decoded value is a copy. */
export function bytes(length: number): Kind<Uint8Array> {
  return {
    ...VALID,
    bytes: length,
    write(output, at, value) {
      assert(value.length === length, "a field of bytes has its length");
      output.bytes.set(value, at);
    },
    read: (frame, at) => frame.bytes.slice(at, at + length),
  };
}

/** A u32 with no other bits than those of `known`. */
export function bits(known: number): Kind<number> {
  const read = ({ view }: Frame, at: number) => {
    const value = view.getUint32(at, true);
    return (value & ~known) === 0 ? value : undefined;
  };
  return { ...u32, problem: UNDEFINED_BITS, read };
}

/** A u32 with at most the bit `flag`. */
export function flag(bit: number): Kind<boolean> {
  return {
    bytes: 4,
    problem: UNDEFINED_BITS,
    write: ({ view }, at, value) => view.setUint32(at, value ? bit : 0, true),
    read({ view }, at) {
      const value = view.getUint32(at, true);
      return (value & ~bit) === 0 ? value !== 0 : undefined;
    },
  };
}

/** A u32 from `min` to `max`: the numbers of an enumeration without gaps. */
export function within<Value extends number>(min: Value, max: Value): Kind<Value> {
  return {
    bytes: 4,
    problem: `undefined: use ${min} to ${max}`,
    write: ({ view }, at, value) => view.setUint32(at, value, true),
    read({ view }, at) {
      const value = view.getUint32(at, true);
      return value >= min && value <= max ? (value as Value) : undefined;
    },
  };
}

/** Fields by name. Names that begin with `reserved` have no value. */
export type Layout = Readonly<Record<string, Kind<unknown>>>;

export type Values<Of extends Layout> = {
  -readonly [Name in keyof Of as Name extends "reserved" ? never : Name]: Of[Name] extends Kind<
    infer Value
  >
    ? Value
    : never;
};

/** The entry of a column for each item. */
type Column = { [at: number]: unknown; readonly length: number };

/** Fields that lie one behind the other. */
export class Fields<Of extends Layout> {
  readonly bytes: number;
  readonly #all: readonly { readonly name: string; readonly kind: Kind<unknown> }[];

  constructor(layout: Of) {
    this.#all = Object.entries(layout).map(([name, kind]) => ({ name, kind }));
    this.bytes = this.#all.reduce((sum, { kind }) => sum + kind.bytes, 0);
  }

  /** Values for `read` to fill. */
  empty(): Values<Of> {
    return {} as Values<Of>;
  }

  write(output: Output, start: number, values: Readonly<Values<Of>>): void {
    let at = start;
    for (const { name, kind } of this.#all) {
      kind.write(output, at, (values as Record<string, unknown>)[name]);
      at += kind.bytes;
    }
  }

  read(frame: Frame, start: number, into: Values<Of>): Refusal | null {
    let at = start;
    for (const { name, kind } of this.#all) {
      const value = kind.read(frame, at);
      if (value === undefined) return malformed(`${opName(frame.op)}: ${name}: ${kind.problem}`);
      if (kind !== reserved) (into as Record<string, unknown>)[name] = value;
      at += kind.bytes;
    }
    return null;
  }

  /** Writes entry `i` of each column as item `i`. */
  writeColumns(output: Output, start: number, items: { readonly count: number }): void {
    let first = start;
    for (const { name, kind } of this.#all) {
      const column = (items as unknown as Record<string, Column>)[name];
      for (let i = 0; i < items.count; i++) kind.write(output, first + i * this.bytes, column?.[i]);
      first += kind.bytes;
    }
  }

  readColumns(frame: Frame, start: number, into: { count: number }): Refusal | null {
    let first = start;
    for (const { name, kind } of this.#all) {
      const column = (into as unknown as Record<string, Column>)[name];
      for (let i = 0; i < frame.count; i++) {
        const value = kind.read(frame, first + i * this.bytes);
        if (value === undefined) return malformed(`${opName(frame.op)}: ${name}: ${kind.problem}`);
        if (column !== undefined) column[i] = value;
      }
      first += kind.bytes;
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

/** What is wrong with values that are valid one by one; null: nothing. */
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

/** A message of `head`, followed by items that are columns of the caller's. */
export function columnsMessage<Head extends Layout, Items extends { count: number }>(
  begin: Begin,
  layouts: { readonly head: Head; readonly item: Layout },
  capacityOf: (into: Items) => number,
) {
  const head = new Fields(layouts.head);
  const item = new Fields(layouts.item);
  return {
    encode(output: Output, requestId: number, values: Values<Head>, items: Readonly<Items>) {
      const bodyBytes = head.bytes + items.count * item.bytes;
      const at = begin(output, requestId, items.count, bodyBytes);
      head.write(output, at, values);
      item.writeColumns(output, at + head.bytes, items);
    },
    decode(frame: Frame, values: Values<Head>, into: Items): Refusal | null {
      return (
        checkItems(frame, head.bytes, item.bytes, capacityOf(into)) ??
        head.read(frame, frame.body, values) ??
        item.readColumns(frame, frame.body + head.bytes, into)
      );
    },
  };
}
