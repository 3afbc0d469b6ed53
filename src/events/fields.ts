import { MsgpackReader, MsgpackWriter, Unreadable } from "../core/index.ts";

/** Reads and writes values of one type as MessagePack. `read` throws `Unreadable`. */
export interface Codec<T> {
  read(reader: MsgpackReader): T;
  write(writer: MsgpackWriter, value: T): void;
}

/** The type of a codec's values. */
export type ValueOf<C> = C extends Codec<infer T> ? T : never;

export type ReadResult<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly why: string };

export function encode<T>(codec: Codec<T>, value: T): Uint8Array {
  const writer = new MsgpackWriter();
  codec.write(writer, value);
  return writer.done();
}

/** Decodes one value from untrusted bytes. Trailing bytes are a fault. */
export function decode<T>(
  codec: Pick<Codec<T>, "read">,
  bytes: Uint8Array,
  bytesMax = Number.POSITIVE_INFINITY,
): ReadResult<T> {
  if (bytes.length > bytesMax) return { ok: false, why: "message is too long" };
  try {
    const reader = new MsgpackReader(bytes);
    const value = codec.read(reader);
    if (!reader.isAtEnd) throw new Unreadable("trailing bytes");
    return { ok: true, value };
  } catch (thrown) {
    if (thrown instanceof Unreadable) return { ok: false, why: thrown.message };
    throw thrown;
  }
}

export const u64: Codec<bigint> = {
  read: (reader) => reader.u64(),
  write: (writer, value) => writer.int(value),
};

export const bool: Codec<boolean> = {
  read: (reader) => reader.bool(),
  write: (writer, value) => writer.bool(value),
};

/** Returns a codec of an integer from 0 to `max`. */
export function uint(max = Number.MAX_SAFE_INTEGER): Codec<number> {
  return { read: (reader) => reader.uint(max), write: (writer, value) => writer.int(value) };
}

export function text(bytesMax: number): Codec<string> {
  return { read: (reader) => reader.str(bytesMax), write: (writer, value) => writer.str(value) };
}

/** Returns a codec of at most `bytesMax` bytes. A value that was read is a view of the input. */
export function binary(bytesMax: number): Codec<Uint8Array> {
  return { read: (reader) => reader.bin(bytesMax), write: (writer, value) => writer.bin(value) };
}

const WORD_BYTES_MAX = 64;

/** Returns a codec of one of `words`. `what` names the value in the fault. */
export function oneOf<const W extends readonly string[]>(words: W, what: string): Codec<W[number]> {
  const read = (reader: MsgpackReader): W[number] => {
    const given = reader.str(WORD_BYTES_MAX);
    if (!words.includes(given)) throw new Unreadable(`unknown ${what}`);
    return given;
  };
  return { read, write: (writer, value) => writer.str(value) };
}

export function nullable<T>(codec: Codec<T>): Codec<T | null> {
  return {
    read: (reader) => (reader.nil() ? null : codec.read(reader)),
    write: (writer, value) => (value === null ? writer.nil() : codec.write(writer, value)),
  };
}

/**
 * Returns a codec that reads and writes the values of `codec` in another form. `read` may throw
 * `Unreadable`.
 */
export function converted<T, U>(
  codec: Codec<T>,
  read: (value: T) => U,
  write: (value: U) => T,
): Codec<U> {
  return {
    read: (reader) => read(codec.read(reader)),
    write: (writer, value) => codec.write(writer, write(value)),
  };
}

/**
 * Returns a codec that accepts only values for which `isValid` returns true. `fault` is the reason
 * given for other values.
 */
export function checked<T>(codec: Codec<T>, isValid: (value: T) => boolean, fault: string) {
  const read = (reader: MsgpackReader): T => {
    const value = codec.read(reader);
    if (!isValid(value)) throw new Unreadable(fault);
    return value;
  };
  return { ...codec, read };
}

/** Skips a value of any type when reading; writes nil. */
export const skipped: Codec<null> = {
  read(reader) {
    reader.skip();
    return null;
  },
  write: (writer) => writer.nil(),
};

export function list<T>(codec: Codec<T>, itemsMax: number): Codec<readonly T[]> {
  return {
    read: (reader) => Array.from({ length: reader.array(itemsMax) }, () => codec.read(reader)),
    write(writer, items) {
      writer.array(items.length);
      for (const item of items) codec.write(writer, item);
    },
  };
}

/** Returns a codec of a list of 64-bit hashes. */
export function hashList(itemsMax: number): Codec<BigUint64Array> {
  return {
    read(reader) {
      const hashes = new BigUint64Array(reader.array(itemsMax));
      for (let i = 0; i < hashes.length; i++) hashes[i] = reader.u64();
      return hashes;
    },
    write(writer, hashes) {
      writer.array(hashes.length);
      for (const hash of hashes) writer.int(hash);
    },
  };
}

type Positions = Readonly<Record<string, Codec<never> | Codec<unknown>>>;

/** Returns a codec of a list of fixed length, with one codec per position. */
export function tuple<const P extends Positions>(positions: P) {
  const entries = Object.entries(positions) as [string, Codec<unknown>][];
  const { length } = entries;
  const codec: Codec<{ readonly [N in keyof P]: ValueOf<P[N]> }> = {
    read(reader) {
      if (reader.array(length) !== length) throw new Unreadable(`list must have ${length} items`);
      const value: Record<string, unknown> = {};
      for (const [name, own] of entries) value[name] = own.read(reader);
      return value as ReturnType<typeof codec.read>;
    },
    write(writer, value) {
      writer.array(length);
      for (const [name, own] of entries) own.write(writer, value[name]);
    },
  };
  return codec;
}

/** A member of a map: its name, its codec and its default. */
export interface Member<T> {
  readonly name: string;
  readonly codec: Codec<T>;
  /** Default of a missing member. Without a default, the member is required. */
  readonly absent?: { readonly value: T };
  /** True if the member is left out of the map when it has its default value. */
  readonly isOmitted?: boolean;
}

export function required<T>(name: string, codec: Codec<T>): Member<T> {
  return { name, codec };
}

/**
 * Declares a member that is always written. When it is missing, which happens in messages of other
 * implementations, it is read as `value`.
 */
export function defaulted<T>(name: string, codec: Codec<T>, value: T): Member<T> {
  return { name, codec, absent: { value } };
}

/** Declares a member that is left out when it has `value`. */
export function omitted<T, V>(name: string, codec: Codec<T>, value: V): Member<T | V> {
  const own = codec as Codec<T | V>;
  return { name, codec: own, absent: { value }, isOmitted: true };
}

/**
 * Members of a map by property. A nested table gives an object property; its members are read from,
 * and written to, the same map.
 */
export interface Fields {
  readonly [property: string]: Member<never> | Member<unknown> | Fields;
}

export type Struct<F> = {
  readonly [P in keyof F]: F[P] extends Member<infer T> ? T : Struct<F[P]>;
};

type AnyMember = Member<unknown>;
type Values = Readonly<Record<string, unknown>>;

/** A property with its member, or with the entries of a nested table. */
interface Entry {
  readonly property: string;
  readonly of: AnyMember | readonly Entry[];
}

const MEMBERS_MAX = 32;
const NAME_BYTES_MAX = 256;

function isNested(of: Entry["of"]): of is readonly Entry[] {
  return Array.isArray(of);
}

function entriesOf(fields: Fields): Entry[] {
  return Object.entries(fields).map(([property, field]) => {
    const isMember = typeof field.name === "string";
    return { property, of: isMember ? (field as AnyMember) : entriesOf(field as Fields) };
  });
}

/** Returns the members of the entries and of their nested tables, by member name. */
function byName(entries: readonly Entry[]): (readonly [string, AnyMember])[] {
  return entries.flatMap(({ of }) => (isNested(of) ? byName(of) : [[of.name, of] as const]));
}

/**
 * Reads the members of a map. A member may occur at most once; members not in `known` are skipped.
 */
function readMembers(reader: MsgpackReader, known: ReadonlyMap<string, AnyMember>) {
  const values = new Map<string, unknown>();
  for (let left = reader.map(MEMBERS_MAX); left > 0; left--) {
    const name = reader.str(NAME_BYTES_MAX);
    const member = known.get(name);
    if (member === undefined) reader.skip();
    else if (values.has(name)) throw new Unreadable(`${name} is duplicated`);
    else values.set(name, member.codec.read(reader));
  }
  return values;
}

function build(entries: readonly Entry[], values: ReadonlyMap<string, unknown>) {
  const built: Record<string, unknown> = {};
  for (const { property, of } of entries) {
    if (isNested(of)) built[property] = build(of, values);
    else if (values.has(of.name)) built[property] = values.get(of.name);
    else if (of.absent === undefined) throw new Unreadable(`${of.name} is missing`);
    else built[property] = of.absent.value;
  }
  return built;
}

function isWritten({ isOmitted, absent }: AnyMember, value: unknown): boolean {
  return !isOmitted || value !== absent?.value;
}

function countMembers(entries: readonly Entry[], values: Values): number {
  let count = 0;
  for (const { property, of } of entries) {
    const value = values[property];
    if (isNested(of)) count += countMembers(of, value as Values);
    else if (isWritten(of, value)) count++;
  }
  return count;
}

function writeMembers(writer: MsgpackWriter, entries: readonly Entry[], values: Values): void {
  for (const { property, of } of entries) {
    const value = values[property];
    if (isNested(of)) writeMembers(writer, of, value as Values);
    else if (isWritten(of, value)) of.codec.write(writer.str(of.name), value);
  }
}

/** Returns a codec of a map with these members, written in the order of the table. */
export function struct<const F extends Fields>(fields: F): Codec<Struct<F>> {
  const entries = entriesOf(fields);
  const known = new Map(byName(entries));
  return {
    read: (reader) => build(entries, readMembers(reader, known)) as Struct<F>,
    write(writer, value) {
      writer.map(countMembers(entries, value));
      writeMembers(writer, entries, value);
    },
  };
}

type Variant<K, F> = { readonly kind: K } & Struct<F>;
type Union<V> = { [K in keyof V]: Variant<K, V[K]> }[keyof V];

/**
 * Returns a codec of a union of maps. The member `kind`, which is written first, selects the
 * variant.
 */
export function union<const V extends Readonly<Record<string, Fields>>>(variants: V) {
  const kind = required("kind", oneOf(Object.keys(variants), "kind"));
  const tables = Object.fromEntries(
    Object.entries(variants).map(([name, fields]) => [name, entriesOf({ kind, ...fields })]),
  );
  const known = new Map(Object.values(tables).flatMap(byName));
  const codec: Codec<Union<V>> = {
    read(reader) {
      const values = readMembers(reader, known);
      const name = values.get("kind");
      if (name === undefined) throw new Unreadable("kind is missing");
      return build(tables[name as string], values) as Union<V>;
    },
    write(writer, value) {
      const entries = tables[value.kind as string];
      writer.map(countMembers(entries, value));
      writeMembers(writer, entries, value);
    },
  };
  return codec;
}

interface Tag {
  readonly tag: string;
  /** Codec of the variant's content. Absent if the variant has none. */
  readonly codec?: Codec<never> | Codec<object>;
}
type TaggedValue<V> = {
  [K in keyof V]: { readonly kind: K } & (V[K] extends { codec: Codec<infer T> } ? T : unknown);
}[keyof V];

/**
 * Returns a codec of a union as Rust's serde writes it: a map with one member named after the
 * variant, or only the variant's name if it has no content.
 */
export function tagged<const V extends Readonly<Record<string, Tag>>>(variants: V) {
  const kindOf = (tag: string, isAlone: boolean): string => {
    for (const [kind, variant] of Object.entries(variants)) {
      if (variant.tag === tag && (variant.codec === undefined) === isAlone) return kind;
    }
    throw new Unreadable("unknown kind");
  };
  const codec: Codec<TaggedValue<V>> = {
    read(reader) {
      if (reader.kind() === "str") {
        return { kind: kindOf(reader.str(NAME_BYTES_MAX), true) } as TaggedValue<V>;
      }
      if (reader.map(1) !== 1) throw new Unreadable("no kind");
      const kind = kindOf(reader.str(NAME_BYTES_MAX), false);
      const own = variants[kind].codec as Codec<object>;
      return { kind, ...own.read(reader) } as TaggedValue<V>;
    },
    write(writer, value) {
      const { tag, codec: own } = variants[value.kind as string];
      if (own === undefined) writer.str(tag);
      else (own as Codec<unknown>).write(writer.map(1).str(tag), value);
    },
  };
  return codec;
}
