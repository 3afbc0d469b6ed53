import { assert } from "../core/index.ts";
import type { Hashing } from "./digests.ts";

/**
 * All properties of an engine that must match before it may share blocks with another one. Two
 * engines share blocks if and only if all fields of their manifests are equal. Text is compared
 * byte for byte and never empty; a property that does not apply is `null`.
 */
export interface NamespaceManifest {
  /** Model name as configured in the engine, for example `"Qwen/Qwen3-32B"`. */
  readonly model: string;
  /** Commit or digest of the model's weights. */
  readonly weightsRevision: string | null;
  /** Type of the cached values, for example `"bfloat16"` or `"fp8_e4m3"`. */
  readonly dtype: string;
  /** Quantisation of weights or cache, if it changes the cached values. */
  readonly quantisation: string | null;
  /**
   * Order of the bytes within a block, prefixed with the engine: `"vllm:NHD"`,
   * `"sglang:page_first"`.
   */
  readonly layout: string;
  /** Number of tokens per block. */
  readonly blockTokens: number;
  readonly tpSize: number;
  readonly tpRank: number;
  readonly ppSize: number;
  readonly ppRank: number;
  /** 32-byte digest of the LoRA adapter's weights. Null without an adapter. */
  readonly loraDigest: Uint8Array | null;
  /**
   * Separates tenants: blocks stored with one salt cannot be found with another salt or without
   * one. Null without a salt.
   */
  readonly tenantSalt: string | null;
  /**
   * Other properties of the engine that must match, such as context parallelism, cache group, and
   * attention kind.
   */
  readonly extra: Readonly<Record<string, string>>;
}

/** Fields that `manifestOf` requires. The other fields have defaults. */
type Needed = "model" | "dtype" | "layout" | "blockTokens";

/**
 * Creates a manifest. Omitted fields get null, or 1 for numbers of shards, or no `extra` entries.
 */
export function manifestOf(
  fields: Pick<NamespaceManifest, Needed> & Partial<Omit<NamespaceManifest, Needed>>,
): NamespaceManifest {
  return {
    weightsRevision: null,
    quantisation: null,
    tpSize: 1,
    tpRank: 0,
    ppSize: 1,
    ppRank: 0,
    loraDigest: null,
    tenantSalt: null,
    extra: {},
    ...fields,
  };
}

export const MANIFEST_BYTES_MAX = 65_536;
export const MANIFEST_TEXT_BYTES_MAX = 4096;
export const MANIFEST_EXTRA_MAX = 64;
export const BLOCK_TOKENS_MAX = 65_536;
const LORA_DIGEST_BYTES = 32;

const encoder = new TextEncoder();

function isU32(value: number): boolean {
  return Number.isInteger(value) && value >= 0 && value <= 0xffff_ffff;
}

/** Returns the problem of the text of field `name` as a message. Null if the text is valid. */
function textProblem(name: string, text: string): string | null {
  if (!text.isWellFormed()) return `${name} is not well-formed Unicode`;
  if (text.length === 0) return `${name} is empty: leave it out instead`;
  const bytes = encoder.encode(text).length;
  if (bytes <= MANIFEST_TEXT_BYTES_MAX) return null;
  return `${name} has ${bytes} bytes, at most ${MANIFEST_TEXT_BYTES_MAX} are allowed`;
}

function rankProblem(kind: string, size: number, rank: number): string | null {
  if (!isU32(size) || size === 0) return `${kind}Size ${size} is not a whole number from 1`;
  if (!isU32(rank) || rank >= size) return `${kind}Rank ${rank} is not below ${kind}Size ${size}`;
  return null;
}

function extraProblem(extra: Readonly<Record<string, string>>): string | null {
  const entries = Object.entries(extra);
  if (entries.length > MANIFEST_EXTRA_MAX) {
    return `extra has ${entries.length} entries, at most ${MANIFEST_EXTRA_MAX} are allowed`;
  }
  for (const [name, value] of entries) {
    const problem = textProblem("a name in extra", name) ?? textProblem(`extra ${name}`, value);
    if (problem !== null) return problem;
  }
  return null;
}

/**
 * Returns the length in bytes of the encoded manifest: header, thirteen field headers, five
 * numbers, and the variable parts.
 */
function encodedBytes(manifest: NamespaceManifest, texts: readonly (string | null)[]): number {
  const names = Object.entries(manifest.extra).flat();
  const bytesOf = (text: string | null) => (text === null ? 0 : encoder.encode(text).length);
  const sum = [...texts, ...names].reduce((total, text) => total + bytesOf(text), 0);
  return 6 + 13 * 6 + 5 * 4 + (manifest.loraDigest?.length ?? 0) + 4 * names.length + sum;
}

/** Returns the first problem of a manifest as a message. Null if the manifest is valid. */
export function manifestProblem(manifest: NamespaceManifest): string | null {
  const texts = {
    model: manifest.model,
    weightsRevision: manifest.weightsRevision,
    dtype: manifest.dtype,
    quantisation: manifest.quantisation,
    layout: manifest.layout,
    tenantSalt: manifest.tenantSalt,
  };
  for (const [name, text] of Object.entries(texts)) {
    const problem = text === null ? null : textProblem(name, text);
    if (problem !== null) return problem;
  }
  const { blockTokens, loraDigest } = manifest;
  if (!isU32(blockTokens) || blockTokens === 0 || blockTokens > BLOCK_TOKENS_MAX) {
    return `blockTokens ${blockTokens} is not a whole number from 1 to ${BLOCK_TOKENS_MAX}`;
  }
  if (loraDigest !== null && loraDigest.length !== LORA_DIGEST_BYTES) {
    return `loraDigest has ${loraDigest.length} bytes instead of ${LORA_DIGEST_BYTES}`;
  }
  const problem =
    rankProblem("tp", manifest.tpSize, manifest.tpRank) ??
    rankProblem("pp", manifest.ppSize, manifest.ppRank) ??
    extraProblem(manifest.extra);
  if (problem !== null) return problem;
  const bytes = encodedBytes(manifest, Object.values(texts));
  if (bytes <= MANIFEST_BYTES_MAX) return null;
  return `the manifest has ${bytes} bytes, at most ${MANIFEST_BYTES_MAX} are allowed`;
}

/**
 * Canonical encoding of a manifest, as described in `docs/reference/identity.md` with test vectors:
 *
 *     encoding := "HNSM" version:u8=1 fields:u8=13 field[1] … field[13]
 *     field[t] := tag:u8=t kind:u8 length:u32le value[length]
 *     kind     := 0 absent (length 0) | 1 text (UTF-8) | 2 number (u32le) | 3 bytes | 4 pairs
 *     pairs    := { length:u32le name length:u32le value }, names ascending bytewise, each once
 *
 * All thirteen fields are always present, in the order of their tags, and nothing follows the last
 * one. So each manifest has exactly one encoding, and different manifests have different encodings.
 */
const MAGIC = new TextEncoder().encode("HNSM");
const VERSION = 1;
const FIXED_BYTES = 6;
const HEADER_BYTES = 6;

const Kind = { absent: 0, text: 1, number: 2, bytes: 3, pairs: 4 } as const;

interface Rule {
  readonly tag: number;
  readonly kind: number;
  readonly optional: boolean;
}

/**
 * Encoding of each field. Every field needs a tag, because a field that is not encoded would be
 * ignored in comparisons. A new field needs a new format version.
 */
const RULES: Readonly<Record<keyof NamespaceManifest, Rule>> = {
  model: { tag: 1, kind: Kind.text, optional: false },
  weightsRevision: { tag: 2, kind: Kind.text, optional: true },
  dtype: { tag: 3, kind: Kind.text, optional: false },
  quantisation: { tag: 4, kind: Kind.text, optional: true },
  layout: { tag: 5, kind: Kind.text, optional: false },
  blockTokens: { tag: 6, kind: Kind.number, optional: false },
  tpSize: { tag: 7, kind: Kind.number, optional: false },
  tpRank: { tag: 8, kind: Kind.number, optional: false },
  ppSize: { tag: 9, kind: Kind.number, optional: false },
  ppRank: { tag: 10, kind: Kind.number, optional: false },
  loraDigest: { tag: 11, kind: Kind.bytes, optional: true },
  tenantSalt: { tag: 12, kind: Kind.text, optional: true },
  extra: { tag: 13, kind: Kind.pairs, optional: false },
};

const FIELDS = (Object.keys(RULES) as (keyof NamespaceManifest)[])
  .map((name) => ({ name, ...RULES[name] }))
  .sort((a, b) => a.tag - b.tag);

type Field = (typeof FIELDS)[number];

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function u32(value: number): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
}

function concat(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function encodePairs(pairs: Readonly<Record<string, string>>): Uint8Array {
  const entries = Object.entries(pairs).map(
    ([name, value]) => [encoder.encode(name), encoder.encode(value)] as const,
  );
  entries.sort(([a], [b]) => Buffer.compare(a, b));
  return concat(
    entries.flatMap(([name, value]) => [u32(name.length), name, u32(value.length), value]),
  );
}

function encodeValue(value: NamespaceManifest[keyof NamespaceManifest]): Uint8Array {
  if (value === null) return new Uint8Array(0);
  if (typeof value === "string") return encoder.encode(value);
  if (typeof value === "number") return u32(value);
  if (value instanceof Uint8Array) return value;
  return encodePairs(value);
}

/**
 * Encodes a manifest in its only valid form, at most `MANIFEST_BYTES_MAX` bytes. The manifest must
 * be valid: check external input with `manifestProblem` first.
 */
export function encodeManifest(manifest: NamespaceManifest): Uint8Array {
  const problem = manifestProblem(manifest);
  assert(problem === null, `a valid manifest: ${problem}`);
  const parts: Uint8Array[] = [MAGIC, Uint8Array.of(VERSION, FIELDS.length)];
  for (const { name, tag, kind } of FIELDS) {
    const value = manifest[name];
    const bytes = encodeValue(value);
    parts.push(Uint8Array.of(tag, value === null ? Kind.absent : kind), u32(bytes.length), bytes);
  }
  return concat(parts);
}

export type DecodedManifest =
  | { readonly ok: true; readonly manifest: NamespaceManifest }
  | { readonly ok: false; readonly why: string };

/** Signals invalid input. Thrown and caught within the decoder. */
class Refused extends Error {}

function refuse(why: string): never {
  throw new Refused(why);
}

interface Cursor {
  readonly bytes: Uint8Array;
  at: number;
}

function take(cursor: Cursor, length: number, what: string): Uint8Array {
  if (length > cursor.bytes.length - cursor.at) refuse(`the manifest ends inside ${what}`);
  cursor.at += length;
  return cursor.bytes.subarray(cursor.at - length, cursor.at);
}

function takeU32(cursor: Cursor, what: string): number {
  const bytes = take(cursor, 4, what);
  return new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
}

function decodeText(bytes: Uint8Array, what: string): string {
  try {
    return decoder.decode(new Uint8Array(bytes));
  } catch {
    return refuse(`${what} is not UTF-8`);
  }
}

function decodePairs(bytes: Uint8Array): Record<string, string> {
  const cursor: Cursor = { bytes, at: 0 };
  const pairs: [string, string][] = [];
  let last: Uint8Array | null = null;
  while (cursor.at < bytes.length) {
    const name = take(cursor, takeU32(cursor, "extra"), "a name in extra");
    const value = take(cursor, takeU32(cursor, "extra"), "a value in extra");
    if (last !== null && Buffer.compare(last, name) >= 0) refuse("extra is not in order");
    last = name;
    if (pairs.length === MANIFEST_EXTRA_MAX) refuse(`extra has over ${MANIFEST_EXTRA_MAX} entries`);
    pairs.push([decodeText(name, "a name in extra"), decodeText(value, "a value in extra")]);
  }
  // Object.fromEntries creates ordinary entries even for names such as "__proto__".
  return Object.fromEntries(pairs);
}

function decodeValue(field: Field, kind: number, bytes: Uint8Array): unknown {
  const { name } = field;
  if (kind === Kind.absent) {
    if (!field.optional) refuse(`${name} is missing`);
    if (bytes.length > 0) refuse(`${name} is absent but has ${bytes.length} bytes`);
    return null;
  }
  if (kind !== field.kind) refuse(`${name} is of kind ${kind} instead of ${field.kind}`);
  switch (field.kind) {
    case Kind.text:
      return decodeText(bytes, name);
    case Kind.number:
      if (bytes.length !== 4) refuse(`${name} has ${bytes.length} bytes instead of 4`);
      return new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
    case Kind.bytes:
      return bytes.slice();
    default:
      return decodePairs(bytes);
  }
}

function decodeStrictly(bytes: Uint8Array): NamespaceManifest {
  if (bytes.length > MANIFEST_BYTES_MAX) {
    refuse(`the manifest has ${bytes.length} bytes, at most ${MANIFEST_BYTES_MAX} are allowed`);
  }
  const cursor: Cursor = { bytes, at: 0 };
  const head = take(cursor, FIXED_BYTES, "its header");
  if (Buffer.compare(head.subarray(0, 4), MAGIC) !== 0) refuse("not a manifest");
  if (head[4] !== VERSION) refuse(`manifest version ${head[4]} is not ${VERSION}`);
  if (head[5] !== FIELDS.length) refuse(`the manifest has ${head[5]} fields, not ${FIELDS.length}`);
  const values: Record<string, unknown> = {};
  for (const field of FIELDS) {
    const header = take(cursor, HEADER_BYTES - 4, `the header of ${field.name}`);
    const [tag, kind] = [header[0], header[1]];
    if (tag !== field.tag) refuse(`tag ${tag} instead of ${field.tag} (${field.name})`);
    const length = takeU32(cursor, `the header of ${field.name}`);
    values[field.name] = decodeValue(field, kind, take(cursor, length, field.name));
  }
  const left = bytes.length - cursor.at;
  if (left > 0) refuse(`${left} bytes follow the last field`);
  const manifest = values as unknown as NamespaceManifest;
  const problem = manifestProblem(manifest);
  if (problem !== null) refuse(problem);
  return Object.freeze({ ...manifest, extra: Object.freeze(manifest.extra) });
}

/**
 * Decodes the output of `encodeManifest`. For all other input, returns the reason as a message. The
 * result does not reference `bytes`.
 */
export function decodeManifest(bytes: Uint8Array): DecodedManifest {
  try {
    return { ok: true, manifest: decodeStrictly(bytes) };
  } catch (error) {
    if (error instanceof Refused) return { ok: false, why: error.message };
    throw error;
  }
}

/**
 * BLAKE3 context for namespace keys. Changing this text would change the key of every namespace.
 */
const NAMESPACE_CONTEXT = "hearth 2026-08 namespace key v1";

/**
 * Computes the 32-byte key that identifies a namespace and keys its digests: BLAKE3 key derivation
 * over the encoded manifest.
 */
export function namespaceKey(hashing: Hashing, manifest: NamespaceManifest): Uint8Array {
  return hashing.blake3DeriveKey(NAMESPACE_CONTEXT, encodeManifest(manifest));
}

/**
 * BLAKE3 contexts for MAC keys and their identifiers. `zig/client/calls.zig` must have the same
 * texts.
 */
const KEY_CONTEXT = "hearth 2026-11 block mac key v1";
const ID_CONTEXT = "hearth 2026-11 block mac key id v1";
/** Key in a manifest's `extra`. Its value is the identifier of the namespace's MAC key. */
export const MAC_FIELD = "hearth.mac";
const KEY_BYTES = 16;
const ID = /^[0-9a-f]{32}$/;

export const SECRET_BYTES_MIN = 16;
export const SECRET_BYTES_MAX = 4096;

/** Values derived from the secret that an operator configures for a namespace. */
export interface NamespaceSecret {
  /** MAC key of 16 bytes, used by `BlockMacs`. */
  readonly key: Uint8Array;
  /** 32 hexadecimal digits that identify the key without revealing it. */
  readonly id: string;
}

/** Derives the MAC key and its identifier from a secret of 16 to 4096 bytes. */
export function namespaceSecret(hashing: Hashing, secret: Uint8Array): NamespaceSecret {
  const key = hashing.blake3DeriveKey(KEY_CONTEXT, secret).slice(0, KEY_BYTES);
  const id = hashing.blake3DeriveKey(ID_CONTEXT, secret).slice(0, KEY_BYTES).toHex();
  return { key, id };
}

/**
 * Returns a copy of the manifest for blocks with MACs under the key `id`. It denotes another
 * namespace than `manifest`.
 */
export function withMacKey(manifest: NamespaceManifest, id: string): NamespaceManifest {
  return { ...manifest, extra: { ...manifest.extra, [MAC_FIELD]: id } };
}

/** Returns the identifier of the namespace's MAC key. Null if its blocks have no MAC. */
export function macKeyIdOf({ extra }: NamespaceManifest): string | null {
  const id = extra[MAC_FIELD];
  return id === undefined ? null : id;
}

/** Returns whether the text is formatted as a key identifier: 32 lower-case hexadecimal digits. */
export function isMacKeyId(text: string): boolean {
  return ID.test(text);
}
