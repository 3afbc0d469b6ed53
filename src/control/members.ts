import type { Refusal, RefusalWord } from "./refusals.ts";

/** Thrown by the readers of members, caught where a command is decoded. */
export class Refused extends Error {
  readonly refusal: Refusal;

  constructor(word: RefusalWord, words: string) {
    super(words);
    this.refusal = { word, words };
  }
}

export type Members = Readonly<Record<string, unknown>>;

export function isMembers(value: unknown): value is Members {
  const isObject = typeof value === "object" && value !== null;
  return isObject && !Array.isArray(value) && !(value instanceof Uint8Array);
}

const U64_MAX = 0xffff_ffff_ffff_ffffn;
/** Printable ASCII; what is beyond is looked at more closely. */
const PLAIN = /^[ -~]+$/;
/** Without control, format and unassigned characters, and without those that break a line. */
const PRINTABLE = /^[^\p{C}\p{Zl}\p{Zp}]+$/u;

/** A member that was left out may also be null. */
export function memberOf(members: Members, name: string): unknown {
  return Object.hasOwn(members, name) ? (members[name] ?? null) : null;
}

export function isName(value: unknown, bytesMax: number): value is string {
  if (typeof value !== "string" || value.length === 0 || value.length > bytesMax) return false;
  return PLAIN.test(value) || (PRINTABLE.test(value) && Buffer.byteLength(value) <= bytesMax);
}

/** Null where there is none. */
export function nameMember(members: Members, name: string, bytesMax: number): string | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  if (isName(value, bytesMax)) return value;
  throw new Refused("malformed", `${name} is text of 1 to ${bytesMax} printable bytes`);
}

export function neededName(members: Members, name: string, bytesMax: number): string {
  const value = nameMember(members, name, bytesMax);
  if (value !== null) return value;
  throw new Refused("malformed", `${name} is missing`);
}

export function u64Member(members: Members, name: string): bigint | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  if (typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value))) {
    const whole = BigInt(value);
    if (whole >= 0n && whole <= U64_MAX) return whole;
  }
  throw new Refused("malformed", `${name} is an integer of 64 bits, 0 or more`);
}

export function neededBoolean(members: Members, name: string): boolean {
  const value = memberOf(members, name);
  if (typeof value === "boolean") return value;
  throw new Refused("malformed", `${name} is true or false`);
}

/** A finite number, also where it came as a bigint. */
export function numberMember(members: Members, name: string): number | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  const number = typeof value === "bigint" ? Number(value) : value;
  if (typeof number === "number" && Number.isFinite(number)) return number;
  throw new Refused("malformed", `${name} is a number`);
}

/** Seconds above 0 as milliseconds; null where there are none. */
export function durationMember(members: Members, name: string): number | null {
  const seconds = numberMember(members, name);
  if (seconds === null) return null;
  if (seconds <= 0) throw new Refused("malformed", `${name} is more than 0 seconds`);
  return Math.min(Math.ceil(seconds * 1_000), Number.MAX_SAFE_INTEGER);
}
