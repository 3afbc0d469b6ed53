import { ptr } from "bun:ffi";
import { assert, HearthError } from "../core/index.ts";
import { STATUS, STRUCTS } from "./abi.gen.ts";

/**
 * Functions that read and write structs of the native library, at the field offsets with which the
 * library was compiled.
 */

export type StructName = keyof typeof STRUCTS;

type FieldValue<Type extends string> = Type extends "u64"
  ? bigint
  : Type extends "u32" | "i32"
    ? number
    : Uint8Array;

type Fields<Name extends StructName> = (typeof STRUCTS)[Name]["fields"];

/**
 * A struct of the native library as an object: u64 as bigint, u32 and i32 as number, byte arrays as
 * Uint8Array.
 */
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

/** Allocates native memory and writes a struct with these values to it. */
export function structOf<Name extends StructName>(
  name: Name,
  value: StructValue<Name>,
): Uint8Array {
  const { bytes } = nativeBuffer(STRUCTS[name].size);
  writeStruct(name, value, bytes);
  return bytes;
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

/** Decodes text up to the first zero byte, or all of `bytes` if there is none. */
export function textOf(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return new TextDecoder().decode(end < 0 ? bytes : bytes.subarray(0, end));
}

/**
 * Allocates native memory with these texts, each followed by a zero byte. Native code may keep the
 * address.
 */
export function textBuffer(...texts: readonly string[]): NativeBuffer {
  const joined = new TextEncoder().encode(texts.map((text) => `${text}\0`).join(""));
  const buffer = nativeBuffer(joined.length);
  buffer.bytes.set(joined);
  return buffer;
}

/**
 * Writes a non-negative integer below 2^53 as u64 at byte offset `at`, without creating a bigint.
 */
export function writeU64(words: Uint32Array, at: number, value: number): void {
  words[at / 4] = value;
  words[at / 4 + 1] = value / 2 ** 32;
}

/**
 * Memory with a stable address that native code may keep. The JavaScript engine may move the
 * contents of a small typed array at any time, but never an explicitly created ArrayBuffer. Only
 * this file obtains addresses.
 */
export interface NativeBuffer {
  readonly bytes: Uint8Array<ArrayBuffer>;
  /**
   * Address of `bytes`. Valid while this object is referenced; code that keeps the address must
   * also keep the object.
   */
  readonly address: number;
}

export function nativeBuffer(byteLength: number): NativeBuffer {
  assert(byteLength > 0, "a native buffer has at least one byte");
  const bytes = new Uint8Array(new ArrayBuffer(byteLength));
  const address: unknown = ptr(bytes);
  assert(typeof address === "number", "an address is a number");
  return { bytes, address };
}

/** Inverts an enumeration: returns the name of each number. */
export function namesOf<Name extends string>(
  numbers: Readonly<Record<Name, number>>,
): ReadonlyMap<number, Name> {
  return new Map((Object.entries(numbers) as [Name, number][]).map(([name, n]) => [n, name]));
}

export type StatusName = keyof typeof STATUS;

const NAMES = namesOf(STATUS);

/** Returns the name of a negative status code. */
export function statusName(code: number): StatusName {
  return NAMES.get(code) ?? "system";
}

/** Reports an unexpected failure of a native call, with its status and errno. */
export class NativeError extends HearthError {
  readonly status: StatusName;
  readonly errno: number;

  constructor(call: string, code: number, errno: number) {
    const status = statusName(code);
    const detail = errno === 0 ? "" : ` (errno ${errno})`;
    super("NATIVE_FAILED", `${call}: ${status.replaceAll("_", " ")}${detail}`);
    this.status = status;
    this.errno = errno;
  }
}

/**
 * Calls `drain` after native threads have written to an eventfd. Several writes can cause one call.
 * The caller owns the descriptor.
 */
export class EventReader {
  readonly #reader: { read(): Promise<{ done: boolean }>; cancel(): Promise<void> };
  readonly #drained: Promise<void>;
  #stopped = false;

  constructor(eventFd: number, drain: () => void) {
    this.#reader = Bun.file(eventFd).stream().getReader();
    this.#drained = this.#drainOnWake(drain);
  }

  async #drainOnWake(drain: () => void): Promise<void> {
    while (true) {
      const { done } = await this.#reader.read();
      if (done || this.#stopped) return;
      drain();
    }
  }

  /** Stops reading. After the promise has resolved, `drain` is not called any more. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#reader.cancel();
    await this.#drained;
  }
}
