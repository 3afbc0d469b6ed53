import {
  MSGPACK_LIMITS,
  MsgpackReader,
  MsgpackWriter,
  runAtOnce,
  Unreadable,
} from "../core/index.ts";
import { type Codec, list, nullable, type ReadResult, text, u64, uint } from "./fields.ts";

/**
 * A KV-cache event of an engine, in one form for both engines and all their encodings. Hashes are
 * opaque: unsigned 64-bit numbers (SGLang's signed ones reinterpreted bit for bit), or digests as
 * sent. `medium` and other text have the engine's own values; `src/events/ingest` interprets them.
 */
export type EngineEvent =
  | {
      readonly kind: "stored";
      readonly hashes: readonly EngineHash[];
      readonly parent: EngineHash | null;
      readonly tokens: Uint32Array;
      /**
       * Block size in tokens, as stated by the event. The last page of a prompt in SGLang may have
       * fewer tokens.
       */
      readonly blockTokens: number;
      readonly loraName: string | null;
      /** Number of the LoRA adapter. Older vLLM versions send only this, not the adapter's name. */
      readonly loraId: bigint | null;
      readonly medium: string | null;
      /** Extra keys of each block's hash, one entry per block. Null if the engine sends none. */
      readonly extras: readonly (BlockExtras | null)[] | null;
      readonly group: KvGroup | null;
      readonly cacheSalt: string | null;
      readonly locality: string | null;
      readonly ownership: string | null;
      readonly sessionId: string | null;
      /**
       * With EAGLE, SGLang sends each token as a pair of it and its successor. `tokens` has the
       * first token of each pair; this is the second token of the last pair.
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
   * An event that could not be decoded. The ingest counts and skips it, and applies the other
   * events of the batch.
   */
  | { readonly kind: "unreadable"; readonly why: string };

export type EngineHash = bigint | Uint8Array;

export interface BlockExtras {
  readonly loraName: string | null;
  /**
   * Multimodal items that overlap the block. `offset` is relative to the block's first token;
   * negative if the item began earlier.
   */
  readonly media: readonly { readonly id: string; readonly offset: number }[];
  readonly cacheSalt: string | null;
  readonly embeddings: Uint8Array | null;
}

export interface KvGroup {
  readonly index: number | null;
  /** The engine's name of the attention kind: `full_attention`, `mla_attention`, ... */
  readonly specKind: string | null;
  readonly slidingWindow: number | null;
}

/** The events that an engine published in one scheduling step. */
export interface EngineBatch {
  /** Publication time in seconds since 1970, by the engine's clock. */
  readonly seconds: number;
  /** Data-parallel rank that published the batch; 0 if the engine states none. */
  readonly rank: number;
  readonly events: readonly EngineEvent[];
}

/** Limits on one batch from an engine. A batch or event beyond them counts as unreadable. */
export const ENGINE_BATCH_LIMITS = {
  bytesMax: MSGPACK_LIMITS.event.bytesMax,
  eventsMax: 65_536,
  /** Maximum block hashes in one event. */
  hashesMax: 262_144,
  tokensMax: 4_194_304,
  textBytesMax: 1_024,
  /** Maximum bytes of one block hash that is a digest. */
  digestBytesMax: 64,
  /** Maximum extra keys of one block's hash. */
  extrasMax: 256,
} as const;

const LIMITS = ENGINE_BATCH_LIMITS;
const NAME_BYTES_MAX = 256;

/** Reads values like `Codec`, but in steps of well below a millisecond, for long lists. */
interface StepCodec<T> {
  steps(reader: MsgpackReader): Generator<void, T>;
  write(writer: MsgpackWriter, value: T): void;
}

const hash: Codec<EngineHash> = {
  read(reader) {
    if (reader.kind() !== "bin") return reader.u64();
    return reader.bin(LIMITS.digestBytesMax).slice();
  },
  write: (writer, value) => (typeof value === "bigint" ? writer.int(value) : writer.bin(value)),
};

const bigInteger: Codec<bigint> = { ...u64, read: (reader) => reader.int() };
const label = text(LIMITS.textBytesMax);
const word = nullable(label);
const whole = nullable(uint());

/** Returns a codec of a list that reads `atOnce` items per step. */
function longList<T>(codec: Codec<T>, atOnce: number): StepCodec<readonly T[]> {
  return {
    *steps(reader) {
      const count = reader.array(LIMITS.hashesMax);
      const read: T[] = [];
      while (read.length < count) {
        if (read.length > 0 && read.length % atOnce === 0) yield;
        read.push(codec.read(reader));
      }
      return read;
    },
    write(writer, items) {
      writer.array(items.length);
      for (const item of items) codec.write(writer, item);
    },
  };
}

interface Tokens {
  readonly tokens: Uint32Array;
  /** Second token of the last pair if the engine sent pairs of tokens, otherwise null. */
  readonly eagleNext: number | null;
}

const TOKEN_MAX = 0xffff_ffff;
const TOKENS_A_STEP = 16_384;
const PAIRS_A_STEP = 2_048;

/** Reads a list of tokens, or with EAGLE a list of pairs (a token and its successor). */
const tokenIds: StepCodec<Tokens> = {
  *steps(reader) {
    const count = reader.array(LIMITS.tokensMax);
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
  },
  write(writer, { tokens, eagleNext }) {
    writer.array(tokens.length);
    for (let i = 0; i < tokens.length; i++) {
      if (eagleNext !== null) writer.array(2);
      writer.int(tokens[i]);
      if (eagleNext !== null) writer.int(tokens[i + 1] ?? eagleNext);
    }
  },
};

/** One extra key of a block's hash. A text is the LoRA name, or else the cache salt. */
type ExtraKey = string | BlockExtras["media"][number] | Uint8Array;

const extraKey: Codec<ExtraKey> = {
  read(reader) {
    switch (reader.kind()) {
      case "str":
        return label.read(reader);
      case "array":
        if (reader.array(2) !== 2) throw new Unreadable("media item is not a pair");
        return { id: label.read(reader), offset: readOffset(reader) };
      case "bin":
        return reader.bin(LIMITS.digestBytesMax).slice();
      default:
        throw new Unreadable("extra key of unknown type");
    }
  },
  write(writer, key) {
    if (typeof key === "string") writer.str(key);
    else if (key instanceof Uint8Array) writer.bin(key);
    else writer.array(2).str(key.id).int(key.offset);
  },
};

/**
 * Reads the offset of a multimodal item from the start of the block; negative if the item began
 * earlier.
 */
function readOffset(reader: MsgpackReader): number {
  const value = Number(reader.int());
  if (!Number.isSafeInteger(value)) throw new Unreadable("offset is not a safe integer");
  return value;
}

/**
 * Sorts the extra keys by meaning. A LoRA name and a salt are both text: the first string equal to
 * the event's LoRA name is the LoRA name.
 */
function extrasOf(keys: readonly ExtraKey[] | null, loraName: string | null): BlockExtras | null {
  if (keys === null) return null;
  const texts = keys.filter((key) => typeof key === "string");
  const hasLora = loraName !== null && texts[0] === loraName;
  return {
    loraName: hasLora ? loraName : null,
    media: keys.filter((key) => typeof key !== "string" && "id" in key),
    cacheSalt: texts[hasLora ? 1 : 0] ?? null,
    embeddings: keys.findLast((key) => key instanceof Uint8Array) ?? null,
  };
}

function keysOf(extras: BlockExtras | null): ExtraKey[] | null {
  if (extras === null) return null;
  const { loraName, media, cacheSalt, embeddings } = extras;
  return [loraName, ...media, cacheSalt, embeddings].filter((key) => key !== null);
}

const hashes = longList(hash, 1_024);
const extraKeys = longList(nullable(list(extraKey, LIMITS.extrasMax)), 256);

/** Codecs of the members of all kinds of events, by member name. */
const MEMBERS = {
  type: label,
  block_hashes: hashes,
  parent_block_hash: nullable(hash),
  token_ids: tokenIds,
  block_size: uint(),
  lora_id: nullable(bigInteger),
  medium: word,
  lora_name: word,
  extra_keys: extraKeys,
  group_idx: whole,
  kv_cache_spec_kind: word,
  kv_cache_spec_sliding_window: whole,
  locality: word,
  ownership: word,
  session_id: word,
  cache_salt: word,
};

type MemberName = keyof typeof MEMBERS;
type MemberValue<C> =
  C extends StepCodec<infer T> ? T | null : C extends Codec<infer T> ? T : never;
type Fields = { -readonly [N in MemberName]?: MemberValue<(typeof MEMBERS)[N]> };

const RANK_MAX = 65_535;
const FIELDS_MAX = 32;
const EVENTS_A_STEP = 16;

/**
 * Decodes a batch: `[seconds, events, rank]`, each event a positional list (vLLM up to 0.23, SGLang
 * up to 0.5.19) or a map (later versions), determined per event. An event that cannot be decoded
 * becomes `unreadable` at its position. Never throws.
 */
export function decodeEngineBatch(payload: Uint8Array): ReadResult<EngineBatch> {
  return runAtOnce(engineBatchSteps(payload));
}

/** Decodes like `decodeEngineBatch`, in steps of well below a millisecond each. */
export function* engineBatchSteps(payload: Uint8Array): Generator<void, ReadResult<EngineBatch>> {
  if (payload.length > LIMITS.bytesMax) return { ok: false, why: "message is too long" };
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
  const count = reader.array(LIMITS.eventsMax);
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
  const fields: Fields = {};
  const kind = reader.kind();
  if (kind === "map") yield* readNamed(reader, fields);
  else if (kind === "array") yield* readPositional(reader, fields);
  else throw new Unreadable("event is neither a list nor a map");
  return eventOf(fields);
}

/**
 * Reads the members of an event encoded as a map. A member may occur at most once; members not in
 * `names` are skipped.
 */
function* readNamed(
  reader: MsgpackReader,
  fields: Fields,
  names: Readonly<Record<string, unknown>> = MEMBERS,
): Generator<void, void> {
  const seen = new Set<string>();
  for (let left = reader.map(FIELDS_MAX); left > 0; left--) {
    const name = reader.str(NAME_BYTES_MAX);
    if (!Object.hasOwn(names, name)) yield* reader.skipSteps();
    else if (seen.has(name)) throw new Unreadable(`${name} is duplicated`);
    else yield* readMember(reader, name as MemberName, fields);
    seen.add(name);
  }
}

function* readMember(
  reader: MsgpackReader,
  name: MemberName,
  fields: Fields,
): Generator<void, void> {
  const codec: Codec<unknown> | StepCodec<unknown> = MEMBERS[name];
  const value =
    "read" in codec ? codec.read(reader) : reader.nil() ? null : yield* codec.steps(reader);
  Object.assign(fields, { [name]: value });
}

/** Names of the members of an event encoded as a list, in order, without the leading tag. */
const PLACES: Readonly<Record<string, readonly MemberName[]>> = {
  BlockStored: [
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
  ],
  BlockRemoved: ["block_hashes", "medium", "group_idx"],
  AllBlocksCleared: [],
};
/** Map member that SGLang 0.5.18 and 0.5.19 send at the list position of vLLM's LoRA name. */
const ASIDE = { cache_salt: word };

function* readPositional(reader: MsgpackReader, fields: Fields): Generator<void, void> {
  const count = reader.array(FIELDS_MAX);
  if (count === 0) throw new Unreadable("empty event");
  fields.type = label.read(reader);
  const places = Object.hasOwn(PLACES, fields.type) ? PLACES[fields.type] : [];
  for (let i = 1; i < count; i++) {
    const place = places[i - 1];
    if (place === undefined) yield* reader.skipSteps();
    else if (reader.kind() === "map") yield* readNamed(reader, fields, ASIDE);
    else yield* readMember(reader, place, fields);
  }
}

function eventOf(fields: Fields): EngineEvent {
  const { type, medium = null, locality = null, ownership = null } = fields;
  const place = { medium, group: groupOf(fields), locality, ownership };
  switch (type) {
    case "BlockStored":
      return { ...storedOf(fields), ...place };
    case "BlockRemoved":
      return { kind: "removed", hashes: needed(fields.block_hashes, "block_hashes"), ...place };
    case "AllBlocksCleared":
      return { kind: "cleared", ownership };
    default:
      throw new Unreadable("unknown event type");
  }
}

function storedOf(fields: Fields) {
  const loraName = fields.lora_name || null;
  return {
    kind: "stored" as const,
    hashes: needed(fields.block_hashes, "block_hashes"),
    parent: fields.parent_block_hash ?? null,
    ...needed(fields.token_ids, "token_ids"),
    blockTokens: needed(fields.block_size, "block_size"),
    loraName,
    loraId: fields.lora_id ?? null,
    extras: fields.extra_keys?.map((keys) => extrasOf(keys, loraName)) ?? null,
    // An empty salt has the same effect as none.
    cacheSalt: fields.cache_salt || null,
    sessionId: fields.session_id ?? null,
  };
}

function groupOf(fields: Fields): KvGroup | null {
  const index = fields.group_idx ?? null;
  const specKind = fields.kv_cache_spec_kind ?? null;
  const slidingWindow = fields.kv_cache_spec_sliding_window ?? null;
  if (index === null && specKind === null && slidingWindow === null) return null;
  return { index, specKind, slidingWindow };
}

function needed<T>(value: T | null | undefined, name: string): T {
  if (value === undefined || value === null) throw new Unreadable(`${name} is missing`);
  return value;
}

/**
 * Encodes a batch like vLLM since 0.24: events are maps; a member is left out if it has its default
 * value, except those that vLLM always writes. Unreadable events are left out.
 */
export function encodeEngineBatch({ seconds, rank, events }: EngineBatch): Uint8Array {
  const readable = events.filter((event) => event.kind !== "unreadable");
  const writer = new MsgpackWriter().array(3).f64(seconds).array(readable.length);
  for (const event of readable) {
    const members = Object.entries(fieldsOf(event)).filter(([, value]) => value !== undefined);
    writer.map(members.length);
    for (const [name, value] of members) {
      const codec = MEMBERS[name as MemberName] as Pick<Codec<unknown>, "write">;
      codec.write(writer.str(name), value);
    }
  }
  return writer.int(rank).done();
}

/**
 * Returns the event's members in the order in which vLLM writes them. An undefined member is not
 * written.
 */
function fieldsOf(event: Exclude<EngineEvent, { kind: "unreadable" }>): Fields {
  if (event.kind === "cleared") {
    return { type: "AllBlocksCleared", ...written({ ownership: event.ownership }) };
  }
  const { hashes, medium, group, locality, ownership } = event;
  const place = written({ locality, ownership });
  if (event.kind === "removed") {
    const own = { block_hashes: hashes, medium, ...written({ group_idx: group?.index }) };
    return { type: "BlockRemoved", ...own, ...place };
  }
  return {
    type: "BlockStored",
    block_hashes: hashes,
    parent_block_hash: event.parent,
    token_ids: { tokens: event.tokens, eagleNext: event.eagleNext },
    block_size: event.blockTokens,
    lora_id: event.loraId,
    medium,
    lora_name: event.loraName,
    ...written({
      extra_keys: event.extras?.map(keysOf),
      group_idx: group?.index,
      kv_cache_spec_kind: group?.specKind,
      kv_cache_spec_sliding_window: group?.slidingWindow,
    }),
    ...place,
    ...written({ session_id: event.sessionId, cache_salt: event.cacheSalt }),
  };
}

/** Returns the members that are neither undefined nor null. */
function written(fields: { readonly [N in MemberName]?: Fields[N] | undefined }): Fields {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => (value ?? null) !== null));
}
