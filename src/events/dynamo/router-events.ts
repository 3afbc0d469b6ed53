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

/** Blocks as maps, compared by their encoded names: an object for each block would be too slow. */
const BLOCK_LIST: Codec<Blocks> = {
  read(reader) {
    const count = reader.array(BLOCKS_MAX);
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
      writer.raw(BLOCK_HASH).int(hashes[i]);
      if (tokenHashes === null) continue;
      writer.raw(TOKENS_HASH).int(tokenHashes[i]).raw(MEDIA_INFO);
      const own = media?.[i] ?? null;
      if (own === null) writer.nil();
      else MEDIA.write(writer, own);
    }
  },
};

const DATA = tagged({
  stored: {
    tag: "stored",
    codec: struct({
      parent: defaulted("parent_hash", nullable(u64), null),
      startPosition: defaulted("start_position", nullable(position), null),
      blocks: required("blocks", BLOCK_LIST),
    }),
  },
  removed: {
    tag: "removed",
    codec: struct({ hashes: required("block_hashes", hashList(BLOCKS_MAX)) }),
  },
  cleared: { tag: "cleared" },
});
export type RouterEventData = ValueOf<typeof DATA>;

/** A residency change of a worker in the format of Dynamo's routers. */
const EVENT = struct({
  workerId: required("worker_id", u64),
  tier: defaulted("storage_tier", oneOf(STORAGE_TIERS, "storage_tier"), "device"),
  domain: omitted("residency_domain", oneOf(["worker", "cache_owner"], "residency_domain"), null),
  /** Hearth's own: `cleared` applies to this tier only. Dynamo's routers clear the whole rank. */
  isTierOnly: omitted("tier_only", bool, false),
  event: required(
    "event",
    struct({
      id: required("event_id", u64),
      data: required("data", DATA),
      rank: defaulted("dp_rank", rank, 0),
    }),
  ),
});
export type RouterEvent = ValueOf<typeof EVENT>;

/** Events with at most `BLOCKS_MAX` blocks together. */
const EVENTS: Codec<readonly RouterEvent[]> = {
  read(reader) {
    let blocks = 0;
    return Array.from({ length: reader.array(EVENTS_MAX) }, () => {
      const one = EVENT.read(reader);
      blocks += blocksIn(one.event.data);
      if (blocks > BLOCKS_MAX) throw new Unreadable(`more than ${BLOCKS_MAX} blocks`, "too_large");
      return one;
    });
  },
  write: list(EVENT, EVENTS_MAX).write,
};

function blocksIn(data: RouterEventData): number {
  if (data.kind === "cleared") return 0;
  return data.kind === "stored" ? data.blocks.hashes.length : data.hashes.length;
}

export function encodeRouterEvents(events: readonly RouterEvent[]): Uint8Array {
  return encode(EVENTS, events);
}

/** Decodes an untrusted message of residency changes. Never throws. */
export function decodeRouterEvents(bytes: Uint8Array): ReadResult<readonly RouterEvent[]> {
  return decode(EVENTS, bytes);
}
