import { MsgpackWriter, Unreadable } from "../../core/index.ts";
import {
  bool,
  type Codec,
  converted,
  decode,
  defaulted,
  encode,
  hashList,
  list,
  nullable,
  omitted,
  oneOf,
  type ReadResult,
  required,
  struct,
  tagged,
  text,
  tuple,
  u64,
  uint,
  type ValueOf,
} from "../fields.ts";

export const STORAGE_TIERS = ["device", "host_pinned", "disk", "external"] as const;
export type StorageTier = (typeof STORAGE_TIERS)[number];

/** Maximum events in one message. Dynamo sends at most 128 events and 8,192 blocks. */
const EVENTS_MAX = 4_096;
const BLOCKS_MAX = 65_536;
/** Maximum events in a worker's reply, which may contain its whole index. */
const ANSWER_EVENTS_MAX = 1_048_576;
const ANSWER_BLOCKS_MAX = 4_194_304;
const MEDIA_MAX = 256;

const rank = uint(65_535);
const position = uint(0xffff_ffff);

/**
 * A multimodal item that overlaps a block, as ranges of token positions; range ends are excluded.
 */
const MEDIA_OBJECT = struct({
  hash: required("mm_hash", u64),
  offsets: defaulted("offsets", list(tuple({ from: position, to: position }), MEDIA_MAX), []),
});
const MEDIA = converted(
  struct({ objects: defaulted("mm_objects", list(MEDIA_OBJECT, MEDIA_MAX), []) }),
  ({ objects }) => objects,
  (objects) => ({ objects }),
);
export type MediaObject = ValueOf<typeof MEDIA_OBJECT>;

interface Blocks {
  /** Opaque hashes of the blocks (the engine's names for them). */
  readonly hashes: BigUint64Array;
  /** Hash of each block's own tokens. Null if unknown; only Hearth sends null. */
  readonly tokenHashes: BigUint64Array | null;
  /** Multimodal items per block; null if a block, or the whole event, has none. */
  readonly media: readonly (readonly MediaObject[] | null)[] | null;
}

const BLOCK_HASH = new MsgpackWriter().str("block_hash").done();
const TOKENS_HASH = new MsgpackWriter().str("tokens_hash").done();
const MEDIA_INFO = new MsgpackWriter().str("mm_extra_info").done();
const BLOCK_MEMBERS_MAX = 8;

/**
 * Returns a codec of blocks encoded as maps. It compares the encoded member names and creates no
 * object per block, which would be too slow.
 */
function blockList(blocksMax: number): Codec<Blocks> {
  return {
    read(reader) {
      const count = reader.array(blocksMax);
      const hashes = new BigUint64Array(count);
      const tokenHashes = new BigUint64Array(count);
      const media: (readonly MediaObject[] | null)[] = [];
      let withTokens = 0;
      for (let i = 0; i < count; i++) {
        let [hasHash, hasTokens] = [false, false];
        for (let left = reader.map(BLOCK_MEMBERS_MAX); left > 0; left--) {
          if (reader.literal(BLOCK_HASH)) {
            hashes[i] = reader.u64();
            hasHash = true;
          } else if (reader.literal(TOKENS_HASH)) {
            tokenHashes[i] = reader.u64();
            hasTokens = true;
          } else if (reader.literal(MEDIA_INFO)) {
            if (!reader.nil()) media[i] = MEDIA.read(reader);
          } else {
            reader.skip();
            reader.skip();
          }
        }
        if (!hasHash) throw new Unreadable("a block has no block_hash");
        if (hasTokens) withTokens++;
      }
      if (withTokens !== 0 && withTokens !== count)
        throw new Unreadable("some blocks have no tokens");
      return {
        hashes,
        tokenHashes: withTokens === 0 && count > 0 ? null : tokenHashes,
        media: media.length === 0 ? null : Array.from(hashes, (_, i) => media[i] ?? null),
      };
    },
    write(writer, { hashes, tokenHashes, media }) {
      writer.array(hashes.length);
      for (let i = 0; i < hashes.length; i++) {
        writer.map(tokenHashes === null ? 1 : 3);
        writer.raw(BLOCK_HASH).int(hashes[i]!);
        if (tokenHashes === null) continue;
        writer.raw(TOKENS_HASH).int(tokenHashes[i]!).raw(MEDIA_INFO);
        const own = media?.[i] ?? null;
        if (own === null) writer.nil();
        else MEDIA.write(writer, own);
      }
    },
  };
}

/** Returns a codec of a worker's residency change in the format of Dynamo's routers. */
function eventOf(blocksMax: number) {
  const data = tagged({
    stored: {
      tag: "stored",
      codec: struct({
        parent: defaulted("parent_hash", nullable(u64), null),
        startPosition: defaulted("start_position", nullable(position), null),
        blocks: required("blocks", blockList(blocksMax)),
      }),
    },
    removed: {
      tag: "removed",
      codec: struct({ hashes: required("block_hashes", hashList(blocksMax)) }),
    },
    cleared: { tag: "cleared" },
  });
  const inner = struct({
    id: required("event_id", u64),
    data: required("data", data),
    rank: defaulted("dp_rank", rank, 0),
  });
  return struct({
    workerId: required("worker_id", u64),
    tier: defaulted("storage_tier", oneOf(STORAGE_TIERS, "storage_tier"), "device"),
    domain: omitted("residency_domain", oneOf(["worker", "cache_owner"], "residency_domain"), null),
    /**
     * Member that only Hearth sends. If true, `cleared` removes only blocks on this event's tier.
     * Dynamo's routers ignore it and remove all blocks of the rank.
     */
    isTierOnly: omitted("tier_only", bool, false),
    event: required("event", inner),
  });
}

export type RouterEvent = ValueOf<ReturnType<typeof eventOf>>;
export type RouterEventData = RouterEvent["event"]["data"];

/** Returns a codec of a list of events that together have at most `blocksMax` blocks. */
function eventList(eventsMax: number, blocksMax: number): Codec<readonly RouterEvent[]> {
  const event = eventOf(blocksMax);
  return {
    read(reader) {
      let blocks = 0;
      return Array.from({ length: reader.array(eventsMax) }, () => {
        const one = event.read(reader);
        blocks += blocksIn(one.event.data);
        if (blocks > blocksMax) throw new Unreadable(`more than ${blocksMax} blocks`, "too_large");
        return one;
      });
    },
    write: list(event, eventsMax).write,
  };
}

function blocksIn(data: RouterEventData): number {
  if (data.kind === "cleared") return 0;
  return data.kind === "stored" ? data.blocks.hashes.length : data.hashes.length;
}

const EVENTS = eventList(EVENTS_MAX, BLOCKS_MAX);

export function encodeRouterEvents(events: readonly RouterEvent[]): Uint8Array {
  return encode(EVENTS, events);
}

/** Decodes an untrusted message of residency changes. Never throws. */
export function decodeRouterEvents(bytes: Uint8Array): ReadResult<readonly RouterEvent[]> {
  return decode(EVENTS, bytes);
}

/**
 * A router's query to a worker that indexes its own blocks. It asks for events that the router
 * missed, or for the whole index. `recovery` is the only supported kind of query.
 */
const QUERY = struct({
  workerId: required("worker_id", u64),
  rank: required("dp_rank", rank),
  /**
   * Id of the first requested event. If `start` and `end` are both null, the query asks for the
   * whole index.
   */
  start: defaulted("start_event_id", nullable(u64), null),
  end: defaulted("end_event_id", nullable(u64), null),
  /** True if the router understands the reply `dump_failed`. */
  knowsDumpFailed: defaulted("supports_tree_dump_failed", bool, false),
  kind: defaulted("kind", oneOf(["recovery"], "kind"), "recovery"),
});
export type WorkerQuery = ValueOf<typeof QUERY>;

export function encodeWorkerQuery(query: WorkerQuery): Uint8Array {
  return encode(QUERY, query);
}

/** Decodes an untrusted query of a router. Never throws. */
export function decodeWorkerQuery(bytes: Uint8Array): ReadResult<WorkerQuery> {
  return decode(QUERY, bytes);
}

const events = required("events", eventList(ANSWER_EVENTS_MAX, ANSWER_BLOCKS_MAX));
const lastId = required("last_event_id", u64);
const message = text(4_096);

/**
 * Scope of a dump. `all`: it contains every block of the rank. Other scopes are partial; readers
 * ignore such dumps.
 */
const resetScope = converted(
  nullable(message),
  (scope) => (scope ?? "all") === "all",
  (isWhole) => (isWhole ? "all" : "part"),
);

const ANSWER = tagged({
  /**
   * The requested events in order. The list may begin at the last `cleared`, and extend past the
   * end of the requested range.
   */
  events: { tag: "Events", codec: struct({ events, lastId }) },
  /**
   * All blocks of the rank, parents before children. The event ids in it are synthetic; the next
   * real event has the id `lastId` + 1.
   */
  dump: {
    tag: "TreeDump",
    codec: struct({ events, lastId, isWhole: defaulted("reset_scope", resetScope, true) }),
  },
  /**
   * The worker could not produce its index. The router keeps the state that it has and queries
   * again.
   */
  dump_failed: {
    tag: "TreeDumpFailed",
    codec: struct({ lastId, why: required("message", message) }),
  },
  too_new: {
    tag: "TooNew",
    codec: struct({
      start: defaulted("requested_start", nullable(u64), null),
      end: defaulted("requested_end", nullable(u64), null),
      newest: required("newest_available", u64),
    }),
  },
  invalid_range: {
    tag: "InvalidRange",
    codec: struct({ start: required("start_id", u64), end: required("end_id", u64) }),
  },
  error: {
    tag: "Error",
    codec: converted(
      message,
      (why) => ({ why }),
      ({ why }) => why,
    ),
  },
});
export type WorkerAnswer = ValueOf<typeof ANSWER>;

export function encodeWorkerAnswer(answer: WorkerAnswer): Uint8Array {
  return encode(ANSWER, answer);
}

/** Decodes a worker's untrusted reply. Never throws. */
export function decodeWorkerAnswer(bytes: Uint8Array): ReadResult<WorkerAnswer> {
  return decode(ANSWER, bytes);
}
