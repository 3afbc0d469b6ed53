import { type ReadResult, reading, readMembers } from "../dynamo/index.ts";
import type { EngineBatch, EngineEvent, EngineHash, KvGroup } from "../engine-event.ts";
import { type MsgpackReader, Unreadable } from "../msgpack/index.ts";
import { ENGINE_BATCH_LIMITS } from "./limits.ts";
import {
  extraKeys,
  hashes,
  integer,
  namedExtras,
  optionalHash,
  type RawExtras,
  type Tokens,
  text,
  tokenIds,
  whole,
} from "./values.ts";

const RANK_MAX = 65_535;
const FIELDS_MAX = 32;

/**
 * Reads what an engine published: `[seconds, events, rank]`, each event a list by place (vLLM up to
 * 0.23, SGLang up to 0.5.19) or a map by name (later ones), told apart event by event. An event
 * that cannot be read stands as `unreadable` in its place. Never throws.
 */
export function decodeEngineBatch(payload: Uint8Array): ReadResult<EngineBatch> {
  if (payload.length > ENGINE_BATCH_LIMITS.bytesMax) return { ok: false, why: "it is too long" };
  return reading(payload, (reader) => {
    const fields = reader.array(FIELDS_MAX);
    if (fields < 2) throw new Unreadable("a batch without events");
    const seconds = reader.number();
    const events = readEvents(reader);
    const rank = fields < 3 || reader.nil() ? 0 : reader.uint(RANK_MAX);
    for (let i = 3; i < fields; i++) reader.skip();
    return { seconds, rank, events };
  });
}

function readEvents(reader: MsgpackReader): EngineEvent[] {
  const count = reader.array(ENGINE_BATCH_LIMITS.eventsMax);
  const events: EngineEvent[] = [];
  for (let i = 0; i < count; i++) {
    const start = reader.at;
    try {
      events.push(readEvent(reader));
    } catch (thrown) {
      if (!(thrown instanceof Unreadable)) throw thrown;
      events.push({ kind: "unreadable", why: thrown.message });
      reader.at = start;
      reader.skip();
    }
  }
  return events;
}

function readEvent(reader: MsgpackReader): EngineEvent {
  const kind = reader.kind();
  if (kind === "map") return tagged(readMembers(reader, MEMBERS));
  if (kind !== "array") throw new Unreadable("an event that is neither list nor map");
  return positional(reader);
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
  -readonly [K in keyof typeof MEMBERS]?: ReturnType<(typeof MEMBERS)[K]>;
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
      throw new Unreadable("an event of a type that is not known");
  }
}

/** Members by place, the tag before them left out. */
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

function positional(reader: MsgpackReader): EngineEvent {
  const count = reader.array(FIELDS_MAX);
  if (count === 0) throw new Unreadable("an event that is empty");
  const type = reader.str(ENGINE_BATCH_LIMITS.textBytesMax);
  const places = Object.hasOwn(PLACES, type) ? PLACES[type]! : [];
  const fields: Fields = { type };
  for (let i = 1; i < count; i++) {
    const place = places[i - 1];
    if (place === undefined) reader.skip();
    else if (reader.kind() === "map") readAside(reader, fields);
    else Object.assign(fields, { [place]: MEMBERS[place](reader) });
  }
  return tagged(fields);
}

/** SGLang 0.5.18 and 0.5.19 put a map where vLLM has the LoRA's name. */
function readAside(reader: MsgpackReader, fields: Fields): void {
  const { cache_salt: salt } = readMembers(reader, { cache_salt: text });
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
    // An empty salt is none.
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
