/**
 * Values as a chat template sees them in Python. Integers are `bigint`, floats `number`, so that 1
 * and 1.0 stay apart; a list is an array, a dictionary a `Map` in insertion order.
 */
export type Value =
  | null
  | boolean
  | bigint
  | number
  | string
  | Value[]
  | Tuple
  | Dict
  | Iter
  | View
  | Undefined
  | Thing;

export type Dict = Map<Value, Value>;

export type Kwargs = ReadonlyMap<string, Value>;

/** An exception that Python, the sandbox or the template itself would raise. */
export class PythonError extends Error {}

export class Tuple {
  readonly items: readonly Value[];
  /** Of a named tuple: what its items are called. */
  readonly names: readonly string[];
  constructor(items: readonly Value[], names: readonly string[] = []) {
    [this.items, this.names] = [items, names];
  }
}

/** A generator or an iterator: always true, read once. */
export class Iter {
  readonly #items: readonly Value[];
  #at = 0;
  constructor(items: readonly Value[]) {
    this.#items = items;
  }

  /** Everything that was not read yet. */
  rest(): readonly Value[] {
    const items = this.#at === 0 ? this.#items : this.#items.slice(this.#at);
    this.#at = this.#items.length;
    return items;
  }

  /** JavaScript's undefined at the end. */
  next(): Value | undefined {
    return this.#at < this.#items.length ? this.#items[this.#at++]! : undefined;
  }
}

/** `dict.keys()`, `dict.values()` or `dict.items()`. */
export class View {
  readonly kind: "dict_keys" | "dict_values" | "dict_items";
  readonly items: readonly Value[];
  constructor(kind: View["kind"], items: readonly Value[]) {
    [this.kind, this.items] = [kind, items];
  }
}

/** Jinja's default `Undefined`: prints as nothing, is false, refuses everything else. */
export class Undefined {
  readonly why: string;
  constructor(why: string) {
    this.why = why;
  }

  raise(): never {
    throw new PythonError(this.why);
  }
}

export type Call = (args: readonly Value[], kwargs: Kwargs) => Value;

/** An object with attributes or a function: a loop, a macro, a namespace, a method. */
export class Thing {
  readonly type: string;
  readonly #attributes: ReadonlyMap<string, () => Value>;
  readonly call: Call | null;
  /** Of a namespace: what templates may assign to. */
  readonly slots: Map<string, Value> | null;

  constructor(
    type: string,
    parts: {
      readonly attributes?: Readonly<Record<string, () => Value>>;
      readonly call?: Call;
      readonly slots?: Map<string, Value>;
    },
  ) {
    this.type = type;
    this.#attributes = new Map(Object.entries(parts.attributes ?? {}));
    this.call = parts.call ?? null;
    this.slots = parts.slots ?? null;
  }

  /** JavaScript's undefined where it has no such attribute. */
  attribute(name: string): Value | undefined {
    return this.slots?.get(name) ?? this.#attributes.get(name)?.();
  }
}

export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  if (typeof value === "boolean") return "bool";
  if (typeof value === "bigint") return "int";
  if (typeof value === "number") return "float";
  if (typeof value === "string") return "str";
  if (Array.isArray(value)) return "list";
  if (value instanceof Map) return "dict";
  if (value instanceof Tuple) return "tuple";
  if (value instanceof View) return value.kind;
  if (value instanceof Iter) return "generator";
  return value instanceof Undefined ? "Undefined" : value.type;
}

/** Dictionaries of Python find 1.0 where 1 was put. */
export function keyOf(key: Value): Value {
  if (typeof key === "number" && Number.isInteger(key)) return BigInt(key);
  if (key !== null && typeof key === "object" && !(key instanceof Thing)) {
    throw new PythonError(`unhashable type: '${typeName(key)}'`);
  }
  return key;
}

export function isTrue(value: Value): boolean {
  if (Array.isArray(value)) return value.length > 0;
  if (value instanceof Map) return value.size > 0;
  if (value instanceof Tuple || value instanceof View) return value.items.length > 0;
  if (value instanceof Undefined) return false;
  return typeof value === "number" ? value !== 0 : Boolean(value);
}

/** Throws where Python has no iterator for it. */
export function iterate(value: Value): readonly Value[] {
  if (Array.isArray(value)) return value;
  if (typeof value === "string") return Array.from(value);
  if (value instanceof Map) return [...value.keys()];
  if (value instanceof Tuple || value instanceof View) return value.items;
  if (value instanceof Iter) return value.rest();
  if (value instanceof Undefined) return [];
  throw new PythonError(`'${typeName(value)}' object is not iterable`);
}

/** Throws where Python's `len` does. */
export function lengthOf(value: Value): number {
  if (typeof value === "string") return lengthOfText(value);
  if (Array.isArray(value)) return value.length;
  if (value instanceof Map) return value.size;
  if (value instanceof Tuple || value instanceof View) return value.items.length;
  if (value instanceof Undefined) return 0;
  throw new PythonError(`object of type '${typeName(value)}' has no len()`);
}

/** Python counts code points. */
function lengthOfText(text: string): number {
  let length = text.length;
  for (let i = 0; i < text.length - 1; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0xd800 || unit > 0xdbff) continue;
    const next = text.charCodeAt(i + 1);
    if (next >= 0xdc00 && next <= 0xdfff) length--;
  }
  return length;
}

export function equals(a: Value, b: Value): boolean {
  if (a === b) return true;
  if (isNumber(a) && isNumber(b)) {
    const [x, y] = [numberOf(a), numberOf(b)];
    // An integer and a float compare by value; === would keep them apart.
    return x <= y && x >= y;
  }
  if (Array.isArray(a)) return Array.isArray(b) && equalLists(a, b);
  if (a instanceof Tuple) return b instanceof Tuple && equalLists(a.items, b.items);
  if (a instanceof Undefined) return b instanceof Undefined;
  if (!(a instanceof Map && b instanceof Map) || a.size !== b.size) return false;
  for (const [key, value] of a) {
    const other = b.get(key);
    if (other === undefined || !equals(value, other)) return false;
  }
  return true;
}

function equalLists(a: readonly Value[], b: readonly Value[]): boolean {
  return a.length === b.length && a.every((one, i) => equals(one, b[i]!));
}

export function isNumber(value: Value): value is bigint | number | boolean {
  return typeof value === "bigint" || typeof value === "number" || typeof value === "boolean";
}

/** Booleans are the integers 0 and 1. */
export function numberOf(value: bigint | number | boolean): bigint | number {
  return typeof value === "boolean" ? (value ? 1n : 0n) : value;
}

/** Below 0, 0 or above 0. Throws where Python cannot order the two. */
export function compare(a: Value, b: Value): number {
  if (isNumber(a) && isNumber(b)) {
    const [x, y] = [numberOf(a), numberOf(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (typeof a === "string" && typeof b === "string") return compareTexts(a, b);
  const [list, other] = [itemsOf(a), itemsOf(b)];
  if (list !== null && other !== null && Array.isArray(a) === Array.isArray(b)) {
    for (let i = 0; i < Math.min(list.length, other.length); i++) {
      if (!equals(list[i]!, other[i]!)) return compare(list[i]!, other[i]!);
    }
    return list.length - other.length;
  }
  if (a instanceof Undefined) a.raise();
  if (b instanceof Undefined) b.raise();
  throw new PythonError(`'${typeName(a)}' and '${typeName(b)}' cannot be ordered`);
}

function itemsOf(value: Value): readonly Value[] | null {
  if (Array.isArray(value)) return value;
  return value instanceof Tuple ? value.items : null;
}

/** By code points; JavaScript's own order is by UTF-16 units. */
function compareTexts(a: string, b: string): number {
  const end = Math.min(a.length, b.length);
  for (let i = 0; i < end; i++) {
    const [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x === y) continue;
    const isWide = (unit: number) => unit >= 0xd800 && unit <= 0xdfff;
    return isWide(x) === isWide(y) ? x - y : isWide(x) ? 1 : -1;
  }
  return a.length - b.length;
}

/** Python's `in`. */
export function contains(value: Value, one: Value): boolean {
  if (typeof value === "string") {
    if (typeof one === "string") return value.includes(one);
    if (one instanceof Undefined) one.raise();
    throw new PythonError(`'in <string>' requires string as left operand, not ${typeName(one)}`);
  }
  if (value instanceof Map) return value.has(keyOf(one));
  return iterate(value).some((item) => equals(item, one));
}
