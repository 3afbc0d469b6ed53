import type { BlockExtras, EngineBatch, EngineEvent, EngineHash } from "../engine-event.ts";
import { MsgpackWriter } from "../msgpack/index.ts";

/**
 * What vLLM publishes since 0.24: events as maps, members with their defaults left out but for
 * those that it always writes. Events that were unreadable are left out.
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
