import { type MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack.ts";
import { orNil, present, type ReadResult, reading, readMembers } from "./envelope.ts";

export const STORAGE_TIERS = ["device", "host_pinned", "disk", "external"] as const;
export type StorageTier = (typeof STORAGE_TIERS)[number];

/** A multimodal item that extends into a block: ranges of positions, ends excluded. */
export interface MediaObject {
  readonly hash: bigint;
  readonly offsets: readonly (readonly [number, number])[];
}

export type RouterEventData =
  | {
      readonly kind: "stored";
      readonly parent: bigint | null;
      readonly startPosition: number | null;
      /** Opaque hashes of the blocks. */
      readonly hashes: BigUint64Array;
      /** Hash of each block's own tokens; null if unknown, which only Hearth sends. */
      readonly tokenHashes: BigUint64Array | null;
      /** By block; null if there is none. */
      readonly media: readonly (readonly MediaObject[] | null)[] | null;
    }
  | { readonly kind: "removed"; readonly hashes: BigUint64Array }
  | { readonly kind: "cleared" };

/** A residency change of a worker in the format of Dynamo's routers. */
export interface RouterEvent {
  readonly workerId: bigint;
  readonly tier: StorageTier;
  readonly domain: "worker" | "cache_owner" | null;
  readonly eventId: bigint;
  readonly rank: number;
  readonly data: RouterEventData;
  /** Hearth's own: `cleared` applies to this tier only. Dynamo's routers clear the whole rank. */
  readonly isTierOnly: boolean;
}

/** Limits of one message that Dynamo sends; larger ones are read. */
export const ROUTER_EVENTS_MAX = 128;
export const ROUTER_BLOCKS_MAX = 8_192;

export interface RouterEventLimits {
  readonly eventsMax: number;
  readonly blocksMax: number;
}

export const ROUTER_EVENT_LIMITS: RouterEventLimits = { eventsMax: 4_096, blocksMax: 65_536 };

const RANK_MAX = 65_535;
const POSITION_MAX = 0xffff_ffff;
const MEDIA_MAX = 256;
const WORD_BYTES_MAX = 32;

export function encodeRouterEvents(events: readonly RouterEvent[]): Uint8Array {
  const writer = new MsgpackWriter();
  writeRouterEvents(writer, events);
  return writer.done();
}

export function writeRouterEvents(writer: MsgpackWriter, events: readonly RouterEvent[]): void {
  writer.array(events.length);
  for (const event of events) writeEvent(writer, event);
}

function writeEvent(writer: MsgpackWriter, event: RouterEvent): void {
  const { domain, isTierOnly, data } = event;
  writer.map(3 + (domain === null ? 0 : 1) + (isTierOnly ? 1 : 0));
  writer.str("worker_id").int(event.workerId);
  writer.str("storage_tier").str(event.tier);
  if (domain !== null) writer.str("residency_domain").str(domain);
  if (isTierOnly) writer.str("tier_only").bool(true);
  writer.str("event").map(3).str("event_id").int(event.eventId).str("data");
  switch (data.kind) {
    case "stored":
      writeStored(writer, data);
      break;
    case "removed":
      writer.map(1).str("removed").map(1).str("block_hashes").array(data.hashes.length);
      for (const hash of data.hashes) writer.int(hash);
      break;
    case "cleared":
      writer.str("cleared");
      break;
    default:
      data satisfies never;
  }
  writer.str("dp_rank").int(event.rank);
}

const BLOCK_HASH = new MsgpackWriter().str("block_hash").done();
const TOKENS_HASH = new MsgpackWriter().str("tokens_hash").done();
const MEDIA = new MsgpackWriter().str("mm_extra_info").done();

function writeStored(writer: MsgpackWriter, data: RouterEventData & { kind: "stored" }): void {
  const { parent, startPosition, hashes, tokenHashes, media } = data;
  writer.map(1).str("stored").map(3).str("parent_hash");
  if (parent === null) writer.nil();
  else writer.int(parent);
  writer.str("start_position");
  if (startPosition === null) writer.nil();
  else writer.int(startPosition);
  writer.str("blocks").array(hashes.length);
  for (let i = 0; i < hashes.length; i++) {
    writer.map(tokenHashes === null ? 1 : 3);
    writer.raw(BLOCK_HASH).int(hashes[i]!);
    if (tokenHashes === null) continue;
    writer.raw(TOKENS_HASH).int(tokenHashes[i]!).raw(MEDIA);
    writeMedia(writer, media?.[i] ?? null);
  }
}

function writeMedia(writer: MsgpackWriter, objects: readonly MediaObject[] | null): void {
  if (objects === null) return void writer.nil();
  writer.map(1).str("mm_objects").array(objects.length);
  for (const { hash, offsets } of objects) {
    writer.map(2).str("mm_hash").int(hash).str("offsets").array(offsets.length);
    for (const [from, to] of offsets) writer.array(2).int(from).int(to);
  }
}

/** Decodes an untrusted message. */
export function decodeRouterEvents(
  bytes: Uint8Array,
  limits: RouterEventLimits = ROUTER_EVENT_LIMITS,
): ReadResult<readonly RouterEvent[]> {
  return reading(bytes, (reader) => readRouterEvents(reader, limits));
}

export function readRouterEvents(reader: MsgpackReader, limits: RouterEventLimits): RouterEvent[] {
  const events: RouterEvent[] = [];
  let blocks = 0;
  for (let left = reader.array(limits.eventsMax); left > 0; left--) {
    const event = readEvent(reader, limits.blocksMax - blocks);
    if (event.data.kind !== "cleared") blocks += event.data.hashes.length;
    events.push(event);
  }
  return events;
}

const DOMAINS = ["worker", "cache_owner"] as const;

function readEvent(reader: MsgpackReader, blocksMax: number): RouterEvent {
  const members = readMembers(reader, {
    worker_id: u64,
    storage_tier: (it) => oneOf(STORAGE_TIERS, it, "storage_tier"),
    residency_domain: (it) => oneOf(DOMAINS, it, "residency_domain"),
    tier_only: (it) => it.bool(),
    event: (it) => readInner(it, blocksMax),
  });
  return {
    workerId: present(members.worker_id, "worker_id"),
    tier: members.storage_tier ?? "device",
    domain: members.residency_domain ?? null,
    isTierOnly: members.tier_only ?? false,
    ...present(members.event, "event"),
  };
}

function u64(reader: MsgpackReader): bigint {
  return reader.u64();
}

function oneOf<T extends string>(words: readonly T[], reader: MsgpackReader, what: string): T {
  const word = reader.str(WORD_BYTES_MAX);
  const known = words.find((one) => one === word);
  if (known === undefined) throw new Unreadable(`unknown ${what}`);
  return known;
}

function readInner(
  reader: MsgpackReader,
  blocksMax: number,
): Pick<RouterEvent, "eventId" | "rank" | "data"> {
  const members = readMembers(reader, {
    event_id: u64,
    dp_rank: (it) => it.uint(RANK_MAX),
    data: (it) => readData(it, blocksMax),
  });
  return {
    eventId: present(members.event_id, "event_id"),
    rank: members.dp_rank ?? 0,
    data: present(members.data, "data"),
  };
}

function readData(reader: MsgpackReader, blocksMax: number): RouterEventData {
  if (reader.kind() === "str") {
    if (reader.str(WORD_BYTES_MAX) !== "cleared") throw new Unreadable("unknown data");
    return { kind: "cleared" };
  }
  if (reader.map(1) !== 1) throw new Unreadable("data is empty");
  const kind = reader.str(WORD_BYTES_MAX);
  if (kind === "stored") return readStored(reader, blocksMax);
  if (kind !== "removed") throw new Unreadable("unknown data");
  const members = readMembers(reader, { block_hashes: (it) => readHashes(it, blocksMax) });
  return { kind: "removed", hashes: present(members.block_hashes, "block_hashes") };
}

function readHashes(reader: MsgpackReader, blocksMax: number): BigUint64Array {
  const hashes = new BigUint64Array(reader.array(blocksMax));
  for (let i = 0; i < hashes.length; i++) hashes[i] = reader.u64();
  return hashes;
}

function readStored(reader: MsgpackReader, blocksMax: number): RouterEventData {
  const members = readMembers(reader, {
    parent_hash: orNil(u64),
    start_position: orNil((it) => it.uint(POSITION_MAX)),
    blocks: (it) => readBlocks(it, blocksMax),
  });
  return {
    kind: "stored",
    parent: members.parent_hash ?? null,
    startPosition: members.start_position ?? null,
    ...present(members.blocks, "blocks"),
  };
}

interface Blocks {
  readonly hashes: BigUint64Array;
  readonly tokenHashes: BigUint64Array | null;
  readonly media: readonly (readonly MediaObject[] | null)[] | null;
}

function readBlocks(reader: MsgpackReader, blocksMax: number): Blocks {
  const count = reader.array(blocksMax);
  const hashes = new BigUint64Array(count);
  const tokenHashes = new BigUint64Array(count);
  let withTokens = 0;
  const media: (readonly MediaObject[] | null)[] = [];
  for (let i = 0; i < count; i++) {
    let [hasHash, hasTokens] = [false, false];
    for (let left = reader.map(8); left > 0; left--) {
      if (reader.literal(BLOCK_HASH)) {
        hashes[i] = reader.u64();
        hasHash = true;
      } else if (reader.literal(TOKENS_HASH)) {
        tokenHashes[i] = reader.u64();
        hasTokens = true;
      } else if (reader.literal(MEDIA)) {
        if (!reader.nil()) media[i] = readMedia(reader);
      } else {
        reader.skip();
        reader.skip();
      }
    }
    if (!hasHash) throw new Unreadable("a block has no block_hash");
    if (hasTokens) withTokens++;
  }
  if (withTokens !== 0 && withTokens !== count) throw new Unreadable("some blocks have no tokens");
  return {
    hashes,
    tokenHashes: withTokens === 0 && count > 0 ? null : tokenHashes,
    media: media.length === 0 ? null : Array.from(hashes, (_, i) => media[i] ?? null),
  };
}

function readMedia(reader: MsgpackReader): readonly MediaObject[] {
  const list = (it: MsgpackReader) =>
    Array.from({ length: it.array(MEDIA_MAX) }, () => readMediaObject(it));
  return readMembers(reader, { mm_objects: list }).mm_objects ?? [];
}

function readMediaObject(reader: MsgpackReader): MediaObject {
  const members = readMembers(reader, {
    mm_hash: u64,
    offsets: (it) => Array.from({ length: it.array(MEDIA_MAX) }, () => readOffsets(it)),
  });
  return { hash: present(members.mm_hash, "mm_hash"), offsets: members.offsets ?? [] };
}

function readOffsets(reader: MsgpackReader): readonly [number, number] {
  if (reader.array(2) !== 2) throw new Unreadable("offset is not a pair");
  return [reader.uint(POSITION_MAX), reader.uint(POSITION_MAX)];
}

/**
 * A router's query to a worker that indexes its own blocks: for missed events or the whole state.
 */
export interface WorkerQuery {
  readonly workerId: bigint;
  readonly rank: number;
  /** `start` and `end` null: the whole state. */
  readonly start: bigint | null;
  readonly end: bigint | null;
  /** Whether the router supports `dump_failed`. */
  readonly knowsDumpFailed: boolean;
}

export type WorkerAnswer =
  /** In order; may begin at the last `cleared`, and extend past `end`. */
  | { readonly kind: "events"; readonly events: readonly RouterEvent[]; readonly lastId: bigint }
  /** All blocks of the rank, parents first. Event ids are synthetic: continue from `lastId`. */
  | {
      readonly kind: "dump";
      readonly events: readonly RouterEvent[];
      readonly lastId: bigint;
      /** False: a partial state, which readers ignore. */
      readonly isWhole: boolean;
    }
  /** The router keeps its state and queries again. */
  | { readonly kind: "dump_failed"; readonly lastId: bigint; readonly why: string }
  | {
      readonly kind: "too_new";
      readonly start: bigint | null;
      readonly end: bigint | null;
      readonly newest: bigint;
    }
  | { readonly kind: "invalid_range"; readonly start: bigint; readonly end: bigint }
  | { readonly kind: "error"; readonly why: string };

const TEXT_BYTES_MAX = 4_096;
/** An answer contains a whole index, so its limits exceed those of a message. */
const ANSWER_LIMITS: RouterEventLimits = { eventsMax: 1_048_576, blocksMax: 4_194_304 };

export function encodeWorkerQuery(query: WorkerQuery): Uint8Array {
  const writer = new MsgpackWriter().map(6);
  writer.str("worker_id").int(query.workerId).str("dp_rank").int(query.rank);
  writeOptional(writer.str("start_event_id"), query.start);
  writeOptional(writer.str("end_event_id"), query.end);
  writer.str("supports_tree_dump_failed").bool(query.knowsDumpFailed);
  return writer.str("kind").str("recovery").done();
}

/** Decodes an untrusted query; only the kind `recovery` is supported. */
export function decodeWorkerQuery(bytes: Uint8Array): ReadResult<WorkerQuery> {
  return reading(bytes, (reader) => {
    const members = readMembers(reader, QUERY);
    if ((members.kind ?? "recovery") !== "recovery") throw new Unreadable("unknown kind");
    return {
      workerId: present(members.worker_id, "worker_id"),
      rank: present(members.dp_rank, "dp_rank"),
      start: members.start_event_id ?? null,
      end: members.end_event_id ?? null,
      knowsDumpFailed: members.supports_tree_dump_failed ?? false,
    };
  });
}

const QUERY = {
  worker_id: u64,
  dp_rank: (reader: MsgpackReader) => reader.uint(RANK_MAX),
  start_event_id: orNil(u64),
  end_event_id: orNil(u64),
  supports_tree_dump_failed: (reader: MsgpackReader) => reader.bool(),
  kind: text,
};

/** Tagged as in Dynamo: a map with one member named by the kind. */
export function encodeWorkerAnswer(answer: WorkerAnswer): Uint8Array {
  const writer = new MsgpackWriter().map(1);
  switch (answer.kind) {
    case "events":
      writeRouterEvents(writer.str("Events").map(2).str("events"), answer.events);
      return writer.str("last_event_id").int(answer.lastId).done();
    case "dump":
      writeRouterEvents(writer.str("TreeDump").map(3).str("events"), answer.events);
      writer.str("last_event_id").int(answer.lastId);
      return writer
        .str("reset_scope")
        .str(answer.isWhole ? "all" : "part")
        .done();
    case "dump_failed":
      writer.str("TreeDumpFailed").map(2).str("last_event_id").int(answer.lastId);
      return writer.str("message").str(answer.why).done();
    case "too_new":
      writeOptional(writer.str("TooNew").map(3).str("requested_start"), answer.start);
      writeOptional(writer.str("requested_end"), answer.end);
      return writer.str("newest_available").int(answer.newest).done();
    case "invalid_range":
      writer.str("InvalidRange").map(2).str("start_id").int(answer.start);
      return writer.str("end_id").int(answer.end).done();
    case "error":
      return writer.str("Error").str(answer.why).done();
    default:
      return answer satisfies never;
  }
}

/** Decodes an untrusted answer. Never throws. */
export function decodeWorkerAnswer(bytes: Uint8Array): ReadResult<WorkerAnswer> {
  return reading(bytes, (reader) => {
    if (reader.map(1) !== 1) throw new Unreadable("answer without a kind");
    const name = text(reader);
    if (name === "Error") return { kind: "error", why: text(reader) };
    const members = readMembers(reader, ANSWER);
    const lastId = () => present(members.last_event_id, "last_event_id");
    switch (name) {
      case "Events":
        return { kind: "events", events: present(members.events, "events"), lastId: lastId() };
      case "TreeDump": {
        const isWhole = (members.reset_scope ?? "all") === "all";
        const events = present(members.events, "events");
        return { kind: "dump", events, lastId: lastId(), isWhole };
      }
      case "TreeDumpFailed":
        return { kind: "dump_failed", lastId: lastId(), why: present(members.message, "message") };
      case "TooNew":
        return {
          kind: "too_new",
          start: members.requested_start ?? null,
          end: members.requested_end ?? null,
          newest: present(members.newest_available, "newest_available"),
        };
      case "InvalidRange":
        return {
          kind: "invalid_range",
          start: present(members.start_id, "start_id"),
          end: present(members.end_id, "end_id"),
        };
      default:
        throw new Unreadable("unknown kind of answer");
    }
  });
}

/** Members of all answers. */
const ANSWER = {
  events: (reader: MsgpackReader) => readRouterEvents(reader, ANSWER_LIMITS),
  last_event_id: u64,
  reset_scope: orNil(text),
  message: text,
  requested_start: orNil(u64),
  requested_end: orNil(u64),
  newest_available: u64,
  start_id: u64,
  end_id: u64,
};

function text(reader: MsgpackReader): string {
  return reader.str(TEXT_BYTES_MAX);
}

function writeOptional(writer: MsgpackWriter, value: bigint | null): void {
  if (value === null) writer.nil();
  else writer.int(value);
}
