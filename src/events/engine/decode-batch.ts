import { inSteps, memberSteps, type ReadResult } from "../dynamo/index.ts";
import type { EngineBatch, EngineEvent, EngineHash, KvGroup } from "../engine-event.ts";
import { MsgpackReader, Unreadable } from "../msgpack/index.ts";
import { ENGINE_BATCH_LIMITS } from "./limits.ts";
import {
  extraKeys,
  hashes,
  integer,
  namedExtras,
  optionalHash,
  type RawExtras,
  type Read,
  type Tokens,
  text,
  tokenIds,
  whole,
} from "./values.ts";

const RANK_MAX = 65_535;
const FIELDS_MAX = 32;
const EVENTS_A_STEP = 16;

/**
 * Reads what an engine published: `[seconds, events, rank]`, each event a list by place (vLLM up to
 * 0.23, SGLang up to 0.5.19) or a map by name (later ones), told apart event by event. An event
 * that cannot be read stands as `unreadable` in its place. Never throws.
 */
export function decodeEngineBatch(payload: Uint8Array): ReadResult<EngineBatch> {
  const steps = engineBatchSteps(payload);
  for (let step = steps.next(); ; step = steps.next()) if (step.done === true) return step.value;
}

/** As `decodeEngineBatch`, in steps of well below a millisecond each. */
export function* engineBatchSteps(payload: Uint8Array): Generator<void, ReadResult<EngineBatch>> {
  if (payload.length > ENGINE_BATCH_LIMITS.bytesMax) return { ok: false, why: "it is too long" };
  try {
    const reader = new MsgpackReader(payload);
    const value = yield* readBatch(reader);
    if (!reader.isAtEnd) throw new Unreadable("more behind its end");
    return { ok: true, value };
  } catch (thrown) {
    if (thrown instanceof Unreadable) return { ok: false, why: thrown.message };
    throw thrown;
  }
}

function* readBatch(reader: MsgpackReader): Generator<void, EngineBatch> {
  const fields = reader.array(FIELDS_MAX);
  if (fields < 2) throw new Unreadable("a batch without events");
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
  if (kind !== "array") throw new Unreadable("an event that is neither list nor map");
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

function* positional(reader: MsgpackReader): Generator<void, EngineEvent> {
  const count = reader.array(FIELDS_MAX);
  if (count === 0) throw new Unreadable("an event that is empty");
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

/** SGLang 0.5.18 and 0.5.19 put a map where vLLM has the LoRA's name. */
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
