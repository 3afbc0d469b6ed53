import type { BlockExtras, EngineHash } from "../engine-event.ts";
import { type MsgpackReader, Unreadable } from "../msgpack/index.ts";
import { ENGINE_BATCH_LIMITS } from "./limits.ts";

/**
 * How the members of events are read, whatever names or places they have. Long lists are read in
 * steps, each well below a millisecond.
 */

/** What a reader gives, whether it reads at once or in steps. */
export type Read<T> = T extends Generator<void, infer Value> ? Value : T;

const HASHES_A_STEP = 1_024;
const TOKENS_A_STEP = 16_384;
const PAIRS_A_STEP = 2_048;
const EXTRAS_A_STEP = 256;

export function text(reader: MsgpackReader): string | null {
  return reader.nil() ? null : reader.str(ENGINE_BATCH_LIMITS.textBytesMax);
}

export function integer(reader: MsgpackReader): bigint | null {
  return reader.nil() ? null : reader.int();
}

export function whole(reader: MsgpackReader): number | null {
  return reader.nil() ? null : reader.uint();
}

export function hash(reader: MsgpackReader): EngineHash {
  if (reader.kind() !== "bin") return reader.u64();
  return reader.bin(ENGINE_BATCH_LIMITS.digestBytesMax).slice();
}

export function optionalHash(reader: MsgpackReader): EngineHash | null {
  return reader.nil() ? null : hash(reader);
}

export function* hashes(reader: MsgpackReader): Generator<void, EngineHash[]> {
  const count = reader.array(ENGINE_BATCH_LIMITS.hashesMax);
  const read: EngineHash[] = [];
  while (read.length < count) {
    if (read.length > 0 && read.length % HASHES_A_STEP === 0) yield;
    read.push(hash(reader));
  }
  return read;
}

export interface Tokens {
  readonly tokens: Uint32Array;
  /** Where each came as a pair: the second of the last one. */
  readonly eagleNext: number | null;
}

const TOKEN_MAX = 0xffff_ffff;

/** Tokens, or with EAGLE pairs of a token and the next. */
export function* tokenIds(reader: MsgpackReader): Generator<void, Tokens> {
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
    if (reader.array(2) !== 2) throw new Unreadable("a position that is no pair of tokens");
    tokens[i] = reader.uint(TOKEN_MAX);
    if (i > 0 && tokens[i] !== next) throw new Unreadable("pairs of tokens that do not overlap");
    next = reader.uint(TOKEN_MAX);
  }
  return { tokens, eagleNext: next };
}

/** What one block's hash has beside its tokens: strings are told apart once the LoRA is known. */
export interface RawExtras {
  readonly texts: readonly string[];
  readonly media: BlockExtras["media"];
  readonly embeddings: Uint8Array | null;
}

export function* extraKeys(
  reader: MsgpackReader,
): Generator<void, readonly (RawExtras | null)[] | null> {
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
        if (reader.array(2) !== 2) throw new Unreadable("a media item that is no pair");
        media.push({ id: reader.str(ENGINE_BATCH_LIMITS.textBytesMax), offset: offset(reader) });
        break;
      case "bin":
        embeddings = reader.bin(ENGINE_BATCH_LIMITS.digestBytesMax).slice();
        break;
      default:
        throw new Unreadable("an extra key of a type that is not known");
    }
  }
  return { texts, media, embeddings };
}

/** From the start of the block: negative where the item began before. */
function offset(reader: MsgpackReader): number {
  const value = Number(reader.int());
  if (!Number.isSafeInteger(value)) throw new Unreadable("an offset that is none");
  return value;
}

/** A LoRA's name and a salt are both text: the first that is the event's LoRA is that. */
export function namedExtras(raw: RawExtras | null, loraName: string | null): BlockExtras | null {
  if (raw === null) return null;
  const { texts, media, embeddings } = raw;
  const hasLora = loraName !== null && texts[0] === loraName;
  const cacheSalt = texts[hasLora ? 1 : 0] ?? null;
  return { loraName: hasLora ? loraName : null, media, cacheSalt, embeddings };
}
