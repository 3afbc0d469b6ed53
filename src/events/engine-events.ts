import { inSteps, memberSteps, type ReadResult } from "./dynamo/envelope.ts";
import { MsgpackReader, MsgpackWriter, Unreadable } from "./msgpack.ts";

/**
 * An event of an engine, normalized over both engines and all their encodings. Hashes are opaque:
 * unsigned 64-bit numbers (SGLang's signed ones bit for bit), or digests as sent. `medium` and
 * other text are the engine's own; `ingest` interprets them.
 */
export type EngineEvent =
  | {
      readonly kind: "stored";
      readonly hashes: readonly EngineHash[];
      readonly parent: EngineHash | null;
      readonly tokens: Uint32Array;
      /** Block size in tokens of the event; the last page of SGLang may have fewer tokens. */
      readonly blockTokens: number;
      readonly loraName: string | null;
      /** The only adapter information of older vLLM versions. */
      readonly loraId: bigint | null;
      readonly medium: string | null;
      /** One entry per block if the engine provides them; null: none. */
      readonly extras: readonly (BlockExtras | null)[] | null;
      readonly group: KvGroup | null;
      readonly cacheSalt: string | null;
      readonly locality: string | null;
      readonly ownership: string | null;
      readonly sessionId: string | null;
      /**
       * EAGLE sends each token as a pair. `tokens` has the first of each pair, this is the second
       * of the last one.
       */
      readonly eagleNext: number | null;
    }
  | {
      readonly kind: "removed";
      readonly hashes: readonly EngineHash[];
      readonly medium: string | null;
      readonly group: KvGroup | null;
      readonly locality: string | null;
      readonly ownership: string | null;
    }
  | { readonly kind: "cleared"; readonly ownership: string | null }
  /**
   * An event that could not be decoded. It is counted and skipped; the other events of the batch
   * are applied.
   */
  | { readonly kind: "unreadable"; readonly why: string };

export type EngineHash = bigint | Uint8Array;

export interface BlockExtras {
  readonly loraName: string | null;
  /** Multimodal items that extend into the block, with offsets from its start. */
  readonly media: readonly { readonly id: string; readonly offset: number }[];
  readonly cacheSalt: string | null;
  readonly embeddings: Uint8Array | null;
}

export interface KvGroup {
  readonly index: number | null;
  /** `full_attention`, `mla_attention`, ... */
  readonly specKind: string | null;
  readonly slidingWindow: number | null;
}

/** The events that an engine published in one step. */
export interface EngineBatch {
  /** Seconds since 1970, by the engine's clock. */
  readonly seconds: number;
  /** Data-parallel rank; 0 if the engine does not state one. */
  readonly rank: number;
  readonly events: readonly EngineEvent[];
}

/** Limits of one batch of an engine. */
export const ENGINE_BATCH_LIMITS = {
  bytesMax: 16 * 1024 * 1024,
  eventsMax: 65_536,
  /** Per event. */
  hashesMax: 262_144,
  tokensMax: 4_194_304,
  textBytesMax: 1_024,
  /** Maximum bytes of an engine's digest. */
  digestBytesMax: 64,
  /** Maximum extra keys of one block's hash. */
  extrasMax: 256,
} as const;

/**
 * Readers of event members, independent of names and positions. Long lists are read in steps, each
 * well below a millisecond.
 */

/** The value of a reader, whether it reads at once or in steps. */
type Read<T> = T extends Generator<void, infer Value> ? Value : T;

const HASHES_A_STEP = 1_024;
const TOKENS_A_STEP = 16_384;
const PAIRS_A_STEP = 2_048;
const EXTRAS_A_STEP = 256;

function text(reader: MsgpackReader): string | null {
  return reader.nil() ? null : reader.str(ENGINE_BATCH_LIMITS.textBytesMax);
}

function integer(reader: MsgpackReader): bigint | null {
  return reader.nil() ? null : reader.int();
}

function whole(reader: MsgpackReader): number | null {
  return reader.nil() ? null : reader.uint();
}

function hash(reader: MsgpackReader): EngineHash {
  if (reader.kind() !== "bin") return reader.u64();
  return reader.bin(ENGINE_BATCH_LIMITS.digestBytesMax).slice();
}

function optionalHash(reader: MsgpackReader): EngineHash | null {
  return reader.nil() ? null : hash(reader);
}

function* hashes(reader: MsgpackReader): Generator<void, EngineHash[]> {
  const count = reader.array(ENGINE_BATCH_LIMITS.hashesMax);
  const read: EngineHash[] = [];
  while (read.length < count) {
    if (read.length > 0 && read.length % HASHES_A_STEP === 0) yield;
    read.push(hash(reader));
  }
  return read;
}

interface Tokens {
  readonly tokens: Uint32Array;
  /** If tokens came as pairs: the second token of the last pair. */
  readonly eagleNext: number | null;
}

const TOKEN_MAX = 0xffff_ffff;

/** Reads tokens, or with EAGLE pairs of a token and its successor. */
function* tokenIds(reader: MsgpackReader): Generator<void, Tokens> {
  const count = reader.array(ENGINE_BATCH_LIMITS.tokensMax);
  const tokens = new Uint32Array(count);
  if (count === 0 || reader.kind() !== "array") {
    for (let i = 0; i < count; i += TOKENS_A_STEP) {
      if (i > 0) yield;
      reader.u32s(tokens.subarray(i, i + TOKENS_A_STEP));
    }
    return { tokens, eagleNext: null };
  }
  let next = 0;
  for (let i = 0; i < count; i++) {
    if (i > 0 && i % PAIRS_A_STEP === 0) yield;
    if (reader.array(2) !== 2) throw new Unreadable("token entry is not a pair");
    tokens[i] = reader.uint(TOKEN_MAX);
    if (i > 0 && tokens[i] !== next) throw new Unreadable("token pairs do not overlap");
    next = reader.uint(TOKEN_MAX);
  }
  return { tokens, eagleNext: next };
}

/** Extra keys of one block's hash. The meaning of strings depends on the LoRA name. */
interface RawExtras {
  readonly texts: readonly string[];
  readonly media: BlockExtras["media"];
  readonly embeddings: Uint8Array | null;
}

function* extraKeys(reader: MsgpackReader): Generator<void, readonly (RawExtras | null)[] | null> {
  if (reader.nil()) return null;
  const count = reader.array(ENGINE_BATCH_LIMITS.hashesMax);
  const read: (RawExtras | null)[] = [];
  while (read.length < count) {
    if (read.length > 0 && read.length % EXTRAS_A_STEP === 0) yield;
    read.push(reader.nil() ? null : rawExtras(reader));
  }
  return read;
}

function rawExtras(reader: MsgpackReader): RawExtras {
  const texts: string[] = [];
  const media: { id: string; offset: number }[] = [];
  let embeddings: Uint8Array | null = null;
  for (let left = reader.array(ENGINE_BATCH_LIMITS.extrasMax); left > 0; left--) {
    switch (reader.kind()) {
      case "str":
        texts.push(reader.str(ENGINE_BATCH_LIMITS.textBytesMax));
        break;
      case "array":
        if (reader.array(2) !== 2) throw new Unreadable("media item is not a pair");
        media.push({ id: reader.str(ENGINE_BATCH_LIMITS.textBytesMax), offset: offset(reader) });
        break;
      case "bin":
        embeddings = reader.bin(ENGINE_BATCH_LIMITS.digestBytesMax).slice();
        break;
      default:
        throw new Unreadable("extra key of unknown type");
    }
  }
  return { texts, media, embeddings };
}

/** Offset from the start of the block; negative if the item began earlier. */
function offset(reader: MsgpackReader): number {
  const value = Number(reader.int());
  if (!Number.isSafeInteger(value)) throw new Unreadable("offset is not a safe integer");
  return value;
}

/**
 * A LoRA name and a salt are both text: the first string equal to the event's LoRA name is the
 * LoRA.
 */
function namedExtras(raw: RawExtras | null, loraName: string | null): BlockExtras | null {
  if (raw === null) return null;
  const { texts, media, embeddings } = raw;
  const hasLora = loraName !== null && texts[0] === loraName;
  const cacheSalt = texts[hasLora ? 1 : 0] ?? null;
  return { loraName: hasLora ? loraName : null, media, cacheSalt, embeddings };
}

const RANK_MAX = 65_535;
const FIELDS_MAX = 32;
const EVENTS_A_STEP = 16;

/**
 * Decodes a batch: `[seconds, events, rank]`, each event a positional list (vLLM up to 0.23, SGLang
 * up to 0.5.19) or a map (later versions), determined per event. An event that cannot be decoded
 * becomes `unreadable` at its position. Never throws.
 */
export function decodeEngineBatch(payload: Uint8Array): ReadResult<EngineBatch> {
  const steps = engineBatchSteps(payload);
  for (let step = steps.next(); ; step = steps.next()) if (step.done === true) return step.value;
}

/** Like `decodeEngineBatch`, in steps of well below a millisecond each. */
export function* engineBatchSteps(payload: Uint8Array): Generator<void, ReadResult<EngineBatch>> {
  if (payload.length > ENGINE_BATCH_LIMITS.bytesMax)
    return { ok: false, why: "message is too long" };
  try {
    const reader = new MsgpackReader(payload);
    const value = yield* readBatch(reader);
    if (!reader.isAtEnd) throw new Unreadable("trailing bytes");
    return { ok: true, value };
  } catch (thrown) {
    if (thrown instanceof Unreadable) return { ok: false, why: thrown.message };
    throw thrown;
  }
}

function* readBatch(reader: MsgpackReader): Generator<void, EngineBatch> {
  const fields = reader.array(FIELDS_MAX);
  if (fields < 2) throw new Unreadable("batch without events");
  const seconds = reader.number();
  const events = yield* readEvents(reader);
  const rank = fields < 3 || reader.nil() ? 0 : reader.uint(RANK_MAX);
  for (let i = 3; i < fields; i++) yield* reader.skipSteps();
  return { seconds, rank, events };
}

function* readEvents(reader: MsgpackReader): Generator<void, EngineEvent[]> {
  const count = reader.array(ENGINE_BATCH_LIMITS.eventsMax);
  const events: EngineEvent[] = [];
  for (let i = 0; i < count; i++) {
    if (i > 0 && i % EVENTS_A_STEP === 0) yield;
    const start = reader.at;
    try {
      events.push(yield* readEvent(reader));
    } catch (thrown) {
      if (!(thrown instanceof Unreadable)) throw thrown;
      events.push({ kind: "unreadable", why: thrown.message });
      reader.at = start;
      yield* reader.skipSteps();
    }
  }
  return events;
}

function* readEvent(reader: MsgpackReader): Generator<void, EngineEvent> {
  const kind = reader.kind();
  if (kind === "map") return tagged((yield* memberSteps(reader, MEMBERS)) as Fields);
  if (kind !== "array") throw new Unreadable("event is neither a list nor a map");
  return yield* positional(reader);
}

/** Members of all events by name. */
const MEMBERS = {
  type: (reader: MsgpackReader) => reader.str(ENGINE_BATCH_LIMITS.textBytesMax),
  block_hashes: hashes,
  parent_block_hash: optionalHash,
  token_ids: tokenIds,
  block_size: (reader: MsgpackReader) => reader.uint(),
  lora_id: integer,
  medium: text,
  lora_name: text,
  extra_keys: extraKeys,
  group_idx: whole,
  kv_cache_spec_kind: text,
  kv_cache_spec_sliding_window: whole,
  locality: text,
  ownership: text,
  session_id: text,
  cache_salt: text,
};

type Fields = {
  -readonly [K in keyof typeof MEMBERS]?: Read<ReturnType<(typeof MEMBERS)[K]>>;
};

function tagged(fields: Fields): EngineEvent {
  const { type, locality = null, ownership = null } = fields;
  switch (type) {
    case "BlockStored":
      return stored(fields);
    case "BlockRemoved": {
      const medium = fields.medium ?? null;
      const removed = needed(fields.block_hashes, "block_hashes");
      return {
        kind: "removed",
        hashes: removed,
        medium,
        group: group(fields),
        locality,
        ownership,
      };
    }
    case "AllBlocksCleared":
      return { kind: "cleared", ownership };
    default:
      throw new Unreadable("unknown event type");
  }
}

/** Members by position, without the leading tag. */
const STORED = [
  "block_hashes",
  "parent_block_hash",
  "token_ids",
  "block_size",
  "lora_id",
  "medium",
  "lora_name",
  "extra_keys",
  "group_idx",
  "kv_cache_spec_kind",
  "kv_cache_spec_sliding_window",
] as const;
const REMOVED = ["block_hashes", "medium", "group_idx"] as const;
const PLACES: Readonly<Record<string, readonly (keyof Fields)[]>> = {
  BlockStored: STORED,
  BlockRemoved: REMOVED,
  AllBlocksCleared: [],
};

function* positional(reader: MsgpackReader): Generator<void, EngineEvent> {
  const count = reader.array(FIELDS_MAX);
  if (count === 0) throw new Unreadable("empty event");
  const type = reader.str(ENGINE_BATCH_LIMITS.textBytesMax);
  const places = Object.hasOwn(PLACES, type) ? PLACES[type]! : [];
  const fields: Fields = { type };
  for (let i = 1; i < count; i++) {
    const place = places[i - 1];
    if (place === undefined) yield* reader.skipSteps();
    else if (reader.kind() === "map") yield* readAside(reader, fields);
    else Object.assign(fields, { [place]: yield* inSteps(MEMBERS[place](reader)) });
  }
  return tagged(fields);
}

/** SGLang 0.5.18 and 0.5.19 send a map at the position of vLLM's LoRA name. */
function* readAside(reader: MsgpackReader, fields: Fields): Generator<void, void> {
  const shape = { cache_salt: text };
  const { cache_salt: salt } = (yield* memberSteps(reader, shape)) as Pick<Fields, "cache_salt">;
  if (salt !== undefined) fields.cache_salt = salt;
}

function stored(fields: Fields): EngineEvent {
  const { tokens, eagleNext } = needed<Tokens>(fields.token_ids, "token_ids");
  const loraName = fields.lora_name || null;
  return {
    kind: "stored",
    hashes: needed<EngineHash[]>(fields.block_hashes, "block_hashes"),
    parent: fields.parent_block_hash ?? null,
    tokens,
    blockTokens: needed(fields.block_size, "block_size"),
    loraName,
    loraId: fields.lora_id ?? null,
    medium: fields.medium ?? null,
    extras: extrasOf(fields.extra_keys ?? null, loraName),
    group: group(fields),
    // An empty salt counts as no salt.
    cacheSalt: fields.cache_salt || null,
    locality: fields.locality ?? null,
    ownership: fields.ownership ?? null,
    sessionId: fields.session_id ?? null,
    eagleNext,
  };
}

function extrasOf(raw: readonly (RawExtras | null)[] | null, loraName: string | null) {
  return raw?.map((one) => namedExtras(one, loraName)) ?? null;
}

function group(fields: Fields): KvGroup | null {
  const index = fields.group_idx ?? null;
  const specKind = fields.kv_cache_spec_kind ?? null;
  const slidingWindow = fields.kv_cache_spec_sliding_window ?? null;
  if (index === null && specKind === null && slidingWindow === null) return null;
  return { index, specKind, slidingWindow };
}

function needed<T>(value: T | undefined, name: string): T {
  if (value === undefined) throw new Unreadable(`${name} is missing`);
  return value;
}

/**
 * Encodes like vLLM since 0.24: events as maps, without members at their default, except those that
 * vLLM always writes. Unreadable events are omitted.
 */
export function encodeEngineBatch({ seconds, rank, events }: EngineBatch): Uint8Array {
  const readable = events.filter((event) => event.kind !== "unreadable");
  const writer = new MsgpackWriter().array(3).f64(seconds).array(readable.length);
  for (const event of readable) writeEvent(writer, event);
  return writer.int(rank).done();
}

type Member = readonly [string, () => unknown];

function writeEvent(writer: MsgpackWriter, event: EngineEvent): void {
  const members = membersOf(writer, event);
  writer.map(members.length);
  for (const [name, write] of members) {
    writer.str(name);
    write();
  }
}

function membersOf(writer: MsgpackWriter, event: EngineEvent): Member[] {
  const word = (name: string, value: string | null): Member[] =>
    value === null ? [] : [[name, () => writer.str(value)]];
  const number = (name: string, value: number | null | undefined): Member[] =>
    value === null || value === undefined ? [] : [[name, () => writer.int(value)]];
  switch (event.kind) {
    case "stored":
      return [
        ["type", () => writer.str("BlockStored")],
        ["block_hashes", () => writeHashes(writer, event.hashes)],
        ["parent_block_hash", () => writeHash(writer, event.parent)],
        ["token_ids", () => writeTokens(writer, event.tokens, event.eagleNext)],
        ["block_size", () => writer.int(event.blockTokens)],
        ["lora_id", () => (event.loraId === null ? writer.nil() : writer.int(event.loraId))],
        ["medium", () => writeText(writer, event.medium)],
        ["lora_name", () => writeText(writer, event.loraName)],
        ...extrasMember(writer, event.extras),
        ...number("group_idx", event.group?.index),
        ...word("kv_cache_spec_kind", event.group?.specKind ?? null),
        ...number("kv_cache_spec_sliding_window", event.group?.slidingWindow),
        ...word("locality", event.locality),
        ...word("ownership", event.ownership),
        ...word("session_id", event.sessionId),
        ...word("cache_salt", event.cacheSalt),
      ];
    case "removed":
      return [
        ["type", () => writer.str("BlockRemoved")],
        ["block_hashes", () => writeHashes(writer, event.hashes)],
        ["medium", () => writeText(writer, event.medium)],
        ...number("group_idx", event.group?.index),
        ...word("locality", event.locality),
        ...word("ownership", event.ownership),
      ];
    case "cleared":
      return [
        ["type", () => writer.str("AllBlocksCleared")],
        ...word("ownership", event.ownership),
      ];
    case "unreadable":
      return [];
    default:
      return event satisfies never;
  }
}

function extrasMember(
  writer: MsgpackWriter,
  extras: readonly (BlockExtras | null)[] | null,
): Member[] {
  if (extras === null) return [];
  const write = () => {
    writer.array(extras.length);
    for (const one of extras) writeExtras(writer, one);
  };
  return [["extra_keys", write]];
}

function writeExtras(writer: MsgpackWriter, extras: BlockExtras | null): void {
  if (extras === null) {
    writer.nil();
    return;
  }
  const { loraName, media, cacheSalt, embeddings } = extras;
  const texts = [loraName, cacheSalt].filter((text) => text !== null);
  writer.array(texts.length + media.length + (embeddings === null ? 0 : 1));
  if (loraName !== null) writer.str(loraName);
  for (const { id, offset } of media) writer.array(2).str(id).int(offset);
  if (cacheSalt !== null) writer.str(cacheSalt);
  if (embeddings !== null) writer.bin(embeddings);
}

function writeText(writer: MsgpackWriter, text: string | null): void {
  if (text === null) writer.nil();
  else writer.str(text);
}

function writeHash(writer: MsgpackWriter, hash: EngineHash | null): void {
  if (hash === null) writer.nil();
  else if (typeof hash === "bigint") writer.int(hash);
  else writer.bin(hash);
}

function writeHashes(writer: MsgpackWriter, hashes: readonly EngineHash[]): void {
  writer.array(hashes.length);
  for (const hash of hashes) writeHash(writer, hash);
}

function writeTokens(writer: MsgpackWriter, tokens: Uint32Array, eagleNext: number | null): void {
  writer.array(tokens.length);
  for (let i = 0; i < tokens.length; i++) {
    if (eagleNext === null) writer.int(tokens[i]!);
    else
      writer
        .array(2)
        .int(tokens[i]!)
        .int(tokens[i + 1] ?? eagleNext);
  }
}
