import { Decoder, Encoder } from "@msgpack/msgpack";
import {
  type BlockName,
  JsonTooDeep,
  type MsgpackLimits,
  MsgpackReader,
  messageOf,
  parseJson,
  readBlockName,
  stringifyJson,
  Unreadable,
} from "../core/index.ts";
import {
  COMMAND_LIMITS,
  COMMAND_TYPES,
  type Command,
  type CommandType,
  type Envelope,
  namesOf,
  type Refusal,
  type RefusalCode,
  type UnnamedBlock,
} from "./command.ts";

/** Media types of commands and receipts. */
export const JSON_TYPE = "application/json";
export const MSGPACK_TYPE = "application/msgpack";
export type MediaType = typeof JSON_TYPE | typeof MSGPACK_TYPE;

const MSGPACK = /^\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;
const JSON_ANYWHERE = /(?:^|,)\s*application\/json\s*(?:;|,|$)/i;
const MSGPACK_ANYWHERE = /(?:^|,)\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;

/** Returns the media type of a body: MessagePack if `Content-Type` names it, otherwise JSON. */
export function mediaTypeOf(contentType: string | null): MediaType {
  return contentType !== null && MSGPACK.test(contentType) ? MSGPACK_TYPE : JSON_TYPE;
}

/**
 * Returns the media type of a reply: the type that `Accept` names (JSON if it names both),
 * otherwise the type of the request.
 */
export function answerTypeOf(accept: string | null, contentType: string | null): MediaType {
  if (accept !== null && JSON_ANYWHERE.test(accept)) return JSON_TYPE;
  if (accept !== null && MSGPACK_ANYWHERE.test(accept)) return MSGPACK_TYPE;
  return mediaTypeOf(contentType);
}

export type DecodedBody =
  | { readonly ok: true; readonly value: unknown }
  | { readonly ok: false; readonly refusal: Refusal };

const COMMA = 0x2c;
const utf8 = new TextDecoder("utf-8", { fatal: true });
const utf8Encoder = new TextEncoder();
const msgpackDecoder = new Decoder({ useBigInt64: true });
const msgpackEncoder = new Encoder({ useBigInt64: true, ignoreUndefined: true });

/**
 * Decodes an untrusted body. An integer that a double cannot represent is returned as `bigint`; in
 * MessagePack, other integers may be, too. Binary values are views of `bytes`. Every member of an
 * object is an own property, even `__proto__`. Never throws. A body beyond the limits is refused
 * before any memory is allocated for its values.
 */
export function decodeBody(bytes: Uint8Array, type: MediaType, limits: MsgpackLimits): DecodedBody {
  if (bytes.length > limits.bytesMax) {
    const message = `${bytes.length} bytes, the maximum is ${limits.bytesMax}`;
    return { ok: false, refusal: { code: "too_large", message } };
  }
  switch (type) {
    case JSON_TYPE:
      return decodeJson(bytes, limits);
    case MSGPACK_TYPE:
      return decodeMsgpack(bytes, limits);
    default:
      return type satisfies never;
  }
}

/** Encodes a value so that `decodeBody` can read it. A `bigint` becomes a 64-bit integer. */
export function encodeBody(value: unknown, type: MediaType): Uint8Array {
  return type === MSGPACK_TYPE
    ? msgpackEncoder.encode(value)
    : utf8Encoder.encode(stringifyJson(value));
}

/**
 * Returns true if the body has more than `max` commas. This limits the number of values before
 * parsing, because a comma follows every value except the last of a list or object.
 */
function hasMoreCommas(bytes: Uint8Array, max: number): boolean {
  if (bytes.length <= max) return false;
  let commas = 0;
  for (let at = 0; at < bytes.length; at++) if (bytes[at] === COMMA) commas++;
  return commas > max;
}

function decodeJson(bytes: Uint8Array, { valuesMax, depthMax }: MsgpackLimits): DecodedBody {
  const refuse = (code: RefusalCode, message: string): DecodedBody => {
    return { ok: false, refusal: { code, message } };
  };
  if (hasMoreCommas(bytes, valuesMax)) return refuse("too_large", `more than ${valuesMax} values`);
  try {
    return { ok: true, value: parseJson(utf8.decode(bytes), depthMax) };
  } catch (thrown) {
    if (thrown instanceof JsonTooDeep) {
      return refuse("too_deep", `more than ${depthMax} nested lists or objects`);
    }
    const isSyntax = thrown instanceof SyntaxError;
    const message = isSyntax ? `invalid JSON: ${messageOf(thrown)}` : "invalid UTF-8";
    return refuse("malformed", printable(message));
  }
}

function decodeMsgpack(bytes: Uint8Array, limits: MsgpackLimits): DecodedBody {
  try {
    // The decoder allocates memory according to the lengths in the input, so the lengths are
    // checked first.
    const reader = new MsgpackReader(bytes, limits);
    reader.skip();
    if (!reader.isAtEnd) throw new Unreadable("trailing bytes");
    return { ok: true, value: msgpackDecoder.decode(bytes) };
  } catch (thrown) {
    if (thrown instanceof Unreadable && thrown.code !== "malformed") {
      return { ok: false, refusal: { code: thrown.code, message: thrown.message } };
    }
    // The decoder rejects only one thing that passed this check: keys named `__proto__`, or keys
    // that are not text.
    const message = printable(`invalid MessagePack: ${messageOf(thrown)}`);
    return { ok: false, refusal: { code: "malformed", message } };
  }
}

const MESSAGE_MAX = 200;

/** Shortens a parser's message to one printable line. Such a message quotes the untrusted input. */
function printable(message: string): string {
  return message.replace(/[^\x20-\x7e]+/g, "?").slice(0, MESSAGE_MAX);
}

/** Thrown by the functions that read members. `decodeCommand` catches it. */
class Refused extends Error {
  readonly refusal: Refusal;

  constructor(code: RefusalCode, message: string) {
    super(message);
    this.refusal = { code, message };
  }
}

type Members = Readonly<Record<string, unknown>>;

export function isMembers(value: unknown): value is Members {
  const isObject = typeof value === "object" && value !== null;
  return isObject && !Array.isArray(value) && !(value instanceof Uint8Array);
}

const U64_MAX = 0xffff_ffff_ffff_ffffn;
/** Matches printable ASCII text. Other text is matched against `PRINTABLE`. */
const PLAIN = /^[ -~]+$/;
/**
 * Matches text without control, format or unassigned characters and without line or paragraph
 * separators.
 */
const PRINTABLE = /^[^\p{C}\p{Zl}\p{Zp}]+$/u;

/** Returns the value of the member. Null if it is absent or null. */
function memberOf(members: Members, name: string): unknown {
  return Object.hasOwn(members, name) ? (members[name] ?? null) : null;
}

function isName(value: unknown, bytesMax: number): value is string {
  if (typeof value !== "string" || value.length === 0 || value.length > bytesMax) return false;
  return PLAIN.test(value) || (PRINTABLE.test(value) && Buffer.byteLength(value) <= bytesMax);
}

/** Returns the value of a name member. Null if it is absent. */
function nameMember(members: Members, name: string, bytesMax: number): string | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  if (isName(value, bytesMax)) return value;
  throw new Refused("malformed", `${name} must be 1 to ${bytesMax} bytes of printable text`);
}

function neededName(members: Members, name: string, bytesMax: number): string {
  const value = nameMember(members, name, bytesMax);
  if (value !== null) return value;
  throw new Refused("malformed", `${name} is missing`);
}

function u64Member(members: Members, name: string): bigint | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  if (typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value))) {
    const whole = BigInt(value);
    if (whole >= 0n && whole <= U64_MAX) return whole;
  }
  throw new Refused("malformed", `${name} must be an unsigned 64-bit integer`);
}

function neededBoolean(members: Members, name: string): boolean {
  const value = memberOf(members, name);
  if (typeof value === "boolean") return value;
  throw new Refused("malformed", `${name} must be true or false`);
}

/**
 * Returns the value of a member that is a finite number, or a bigint converted to a number. Null if
 * it is absent.
 */
function numberMember(members: Members, name: string): number | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  const number = typeof value === "bigint" ? Number(value) : value;
  if (typeof number === "number" && Number.isFinite(number)) return number;
  throw new Refused("malformed", `${name} must be a number`);
}

/** Returns a duration in milliseconds. The member has seconds, above 0. Null if it is absent. */
function durationMember(members: Members, name: string): number | null {
  const seconds = numberMember(members, name);
  if (seconds === null) return null;
  if (seconds <= 0) throw new Refused("malformed", `${name} must be more than 0 seconds`);
  return Math.min(Math.ceil(seconds * 1_000), Number.MAX_SAFE_INTEGER);
}

/** Those members of a refused command that could be read. They are repeated in its receipt. */
export interface CommandHead {
  readonly type: string;
  readonly id: string | null;
  readonly issuer: string | null;
}

export type DecodedCommand =
  | {
      readonly ok: true;
      readonly command: Command;
      /**
       * Entries of the block list that are not valid block names, in their order. They are not part
       * of `command`.
       */
      readonly unnamed: readonly UnnamedBlock[];
    }
  | { readonly ok: false; readonly refusal: Refusal; readonly head: CommandHead };

const NAME_BYTES_MAX = COMMAND_LIMITS.nameBytesMax;
/** Head of a command whose body could not be decoded. */
export const NO_HEAD: CommandHead = { type: "", id: null, issuer: null };
const TYPES: ReadonlySet<unknown> = new Set(COMMAND_TYPES);
const PRIORITY_MAX = 99;
const GIVEN_CHARS_MAX = 128;

/**
 * Decodes a command. Ignores unknown members; if a member occurs twice, its last value counts.
 * Never throws.
 */
export function decodeCommand(bytes: Uint8Array, contentType: string | null): DecodedCommand {
  const body = decodeBody(bytes, mediaTypeOf(contentType), COMMAND_LIMITS);
  if (!body.ok) return { ok: false, refusal: body.refusal, head: NO_HEAD };
  if (!isMembers(body.value)) {
    const refusal = { code: "malformed", message: "the body must be an object" } as const;
    return { ok: false, refusal, head: NO_HEAD };
  }
  try {
    return readCommand(body.value);
  } catch (thrown) {
    if (!(thrown instanceof Refused)) throw thrown;
    return { ok: false, refusal: thrown.refusal, head: headOf(body.value) };
  }
}

function headOf(members: Members): CommandHead {
  const name = (of: string) => {
    const value = memberOf(members, of);
    return isName(value, NAME_BYTES_MAX) ? value : null;
  };
  return { type: name("type") ?? "", id: name("id"), issuer: name("issuer") };
}

function readCommand(members: Members): DecodedCommand {
  const type = memberOf(members, "type");
  if (typeof type !== "string") throw new Refused("malformed", "type is missing");
  if (!TYPES.has(type)) throw new Refused("unknown_type", `one of ${COMMAND_TYPES.join(", ")}`);
  const unnamed: UnnamedBlock[] = [];
  const command = readMembers(type as CommandType, members, readEnvelope(members), unnamed);
  return { ok: true, command, unnamed };
}

function readEnvelope(members: Members): Envelope {
  return {
    id: nameMember(members, "id", NAME_BYTES_MAX),
    issuer: nameMember(members, "issuer", NAME_BYTES_MAX),
    epoch: u64Member(members, "epoch"),
    seq: u64Member(members, "seq"),
    notAfterS: numberMember(members, "not_after"),
    owner: nameMember(members, "owner", NAME_BYTES_MAX),
  };
}

function readMembers(
  type: CommandType,
  members: Members,
  envelope: Envelope,
  unnamed: UnnamedBlock[],
): Command {
  const blocks = () => readBlocks(members, unnamed);
  const leaseId = () => neededName(members, "lease_id", NAME_BYTES_MAX);
  const ttlMs = () => durationMember(members, "ttl_seconds");
  switch (type) {
    case "Warm": {
      const target = readTarget(members);
      return { ...envelope, type, blocks: blocks(), target, sources: readSources(members) };
    }
    case "Prune":
      return { ...envelope, type, after: readAfter(members) };
    case "Cache":
      return { ...envelope, type, blocks: blocks(), action: readAction(members) };
    case "Think": {
      const transient = neededBoolean(members, "transient");
      return { ...envelope, type, blocks: blocks(), transient };
    }
    case "Pause":
      return { ...envelope, type, blocks: blocks(), ttlMs: ttlMs(), leaseId: leaseId() };
    case "RenewLease": {
      const newTtlMs = durationMember(members, "new_ttl_seconds");
      if (newTtlMs === null) throw new Refused("malformed", "new_ttl_seconds is missing");
      return { ...envelope, type, leaseId: leaseId(), ttlMs: newTtlMs };
    }
    case "RevokeLease":
      return { ...envelope, type, leaseId: leaseId() };
    case "Flush":
      return { ...envelope, type };
    default:
      return type satisfies never;
  }
}

/**
 * Reads the block list, `block_hashes` or `block_keys`. Each of them may contain names of any kind.
 */
function readBlocks(members: Members, unnamed: UnnamedBlock[]): BlockName[] {
  const hashes = memberOf(members, "block_hashes");
  const list = hashes ?? memberOf(members, "block_keys");
  if (!Array.isArray(list)) {
    throw new Refused("malformed", "block_hashes or block_keys must be a list of blocks");
  }
  if (hashes !== null && memberOf(members, "block_keys") !== null) {
    throw new Refused("malformed", "block_hashes and block_keys cannot be combined");
  }
  const { blocksMax } = COMMAND_LIMITS;
  if (list.length > blocksMax) {
    throw new Refused("too_large", `${list.length} blocks, the maximum is ${blocksMax}`);
  }
  const blocks: BlockName[] = [];
  for (let at = 0; at < list.length; at++) {
    const given: unknown = list[at];
    const name = blockName(given);
    if (name !== null) blocks.push(name);
    else unnamed.push({ at, given: shownGiven(given), reason: "name: neither a hash nor a key" });
  }
  return blocks;
}

function readAfter(members: Members): BlockName {
  const given = memberOf(members, "after_block_hash") ?? memberOf(members, "after_block_key");
  const name = given === null ? null : blockName(given);
  if (name !== null) return name;
  throw new Refused(
    "malformed",
    "after_block_hash must be a 64-bit hash or a key of 64 hex digits",
  );
}

/**
 * Returns the name of a block, or null if it is invalid. In MessagePack, a key may also be 32 raw
 * bytes.
 */
function blockName(given: unknown): BlockName | null {
  const isKey = given instanceof Uint8Array && given.length === 32;
  return readBlockName(isKey ? given.toHex() : given);
}

function shownGiven(given: unknown): number | bigint | string {
  if (typeof given === "number" && Number.isFinite(given)) return given;
  if (typeof given === "bigint" && BigInt.asIntN(64, given) === given) return given;
  if (typeof given !== "string" && typeof given !== "bigint") {
    throw new Refused("malformed", "a block must be a 64-bit hash or a key of 64 hex digits");
  }
  return String(given).slice(0, GIVEN_CHARS_MAX).toWellFormed();
}

function readTarget(members: Members): "ram" | "gpu" {
  const tier = memberOf(members, "target_tier") ?? "CPU_TIER1";
  if (tier === "CPU_TIER1") return "ram";
  if (tier === "GPU") return "gpu";
  throw new Refused("malformed", 'target_tier is "CPU_TIER1" or "GPU"');
}

function readSources(members: Members): readonly string[] {
  const sources = memberOf(members, "sources") ?? [];
  const { sourcesMax } = COMMAND_LIMITS;
  if (!Array.isArray(sources)) throw new Refused("malformed", "sources must be a list of workers");
  if (sources.length > sourcesMax) {
    throw new Refused("too_large", `${sources.length} sources, the maximum is ${sourcesMax}`);
  }
  if (sources.every((source) => isName(source, NAME_BYTES_MAX))) return sources;
  throw new Refused("malformed", "a source must be a worker's name");
}

function readAction(members: Members): Extract<Command, { type: "Cache" }>["action"] {
  const hasPin = memberOf(members, "pin") !== null;
  const priority = numberMember(members, "retain");
  if (hasPin === (priority !== null)) {
    throw new Refused("malformed", "exactly one of pin and retain is required");
  }
  if (priority === null) {
    const ttlMs = durationMember(members, "ttl_seconds");
    return neededBoolean(members, "pin") ? { kind: "pin", ttlMs } : { kind: "unpin" };
  }
  if (Number.isInteger(priority) && priority >= 0 && priority <= PRIORITY_MAX) {
    return { kind: "retain", priority, idleMs: durationMember(members, "retain_seconds") };
  }
  throw new Refused("malformed", `retain must be an integer from 0 to ${PRIORITY_MAX}`);
}

const HASH_WORDS = 3;
const KEY_WORDS = 10;
const TAG = { hash: 1, key: 2 } as const;
/** Number of names that fit in the shared buffer. For larger commands a buffer is allocated. */
const NAMES_AT_HAND = 256;
const atHand = new Uint32Array(NAMES_AT_HAND * KEY_WORDS);

/**
 * Returns a 64-bit digest of a command's content. Two commands with one id count as the same if
 * their digests are equal. The digest does not cover time, sender, epoch, number and encoding. Its
 * hash, XXH64, is not collision-resistant, but a sender can only cause collisions between commands
 * of its own id and issuer.
 */
export function commandDigest(command: Command, unnamed: readonly UnnamedBlock[]): string {
  let text = `${command.type}\0${command.owner ?? ""}\0${membersOf(command)}`;
  for (const { given } of unnamed) text += `\0${given}`;
  const words = wordsOf(namesOf(command));
  return Bun.hash.xxHash64(words, Bun.hash.xxHash64(text)).toString(16);
}

function membersOf(command: Command): string {
  switch (command.type) {
    case "Warm":
      return `${command.target}\0${command.sources.join("\0")}`;
    case "Cache": {
      const { action } = command;
      if (action.kind === "unpin") return "unpin";
      if (action.kind === "pin") return `pin ${action.ttlMs}`;
      return `retain ${action.priority} ${action.idleMs}`;
    }
    case "Think":
      return `${command.transient}`;
    case "Pause":
    case "RenewLease":
      return `${command.ttlMs} ${command.leaseId}`;
    case "RevokeLease":
      return command.leaseId;
    case "Prune":
    case "Flush":
      return "";
    default:
      return command satisfies never;
  }
}

/** Returns the names as 32-bit words. Different spellings of one name give the same words. */
function wordsOf(names: readonly BlockName[]): Uint32Array {
  const words = names.length <= NAMES_AT_HAND ? atHand : new Uint32Array(names.length * KEY_WORDS);
  const bytes = new Uint8Array(words.buffer);
  let at = 0;
  for (const name of names) {
    if (name.kind === "hash") {
      words[at] = TAG.hash;
      words[at + 1] = name.lo;
      words[at + 2] = name.hi;
      at += HASH_WORDS;
    } else {
      words[at] = TAG.key;
      words[at + 1] = name.layer;
      bytes.set(name.bytes, (at + 2) * 4);
      at += KEY_WORDS;
    }
  }
  return words.subarray(0, at);
}
