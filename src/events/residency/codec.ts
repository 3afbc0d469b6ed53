import {
  assert,
  isWorkerId,
  type MsgpackReader,
  Unreadable,
  type WorkerId,
} from "../../core/index.ts";
import {
  type KeySpace,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyHeartbeat,
  type ResidencySource,
  type ResidencyTier,
} from "../../observability/activity/index.ts";
import { ENVELOPE_FIELDS } from "../dynamo/envelope.ts";
import { workerNumber } from "../dynamo/hashes.ts";
import {
  decodeRouterEvents,
  encodeRouterEvents,
  type RouterEvent,
  type RouterEventData,
  type StorageTier,
} from "../dynamo/router-events.ts";
import {
  binary,
  bool,
  type Codec,
  checked,
  converted,
  decode,
  defaulted,
  encode,
  list,
  nullable,
  omitted,
  oneOf,
  type ReadResult,
  required,
  struct,
  text,
  tuple,
  u64,
  uint,
  union,
  type ValueOf,
} from "../fields.ts";
import { RESIDENCY_LIMITS } from "./messages.ts";

const LIMITS = RESIDENCY_LIMITS;
const label = text(LIMITS.textBytesMax);
const number = uint();
const optionalNumber = nullable(number);
const optionalHash = nullable(u64);

/** A tier, encoded as its index in RESIDENCY_TIERS. */
const tier: Codec<ResidencyTier> = converted(
  uint(RESIDENCY_TIERS.length - 1),
  (place) => RESIDENCY_TIERS[place],
  (name) => RESIDENCY_TIERS.indexOf(name),
);

/**
 * Hashes packed into bytes, each a little-endian u64, which is the byte order of all hosts that Bun
 * supports.
 */
const packedHashes: Codec<BigUint64Array> = {
  read(reader) {
    const bytes = reader.bin(LIMITS.messageBytesMax);
    if (bytes.length % 8 !== 0) throw new Unreadable("hashes are not a multiple of eight bytes");
    // `new Uint8Array` copies to memory aligned to eight bytes, which BigUint64Array requires;
    // `slice` of a Buffer makes no copy.
    return new BigUint64Array(new Uint8Array(bytes).buffer);
  },
  write(writer, hashes) {
    writer.bin(new Uint8Array(hashes.buffer, hashes.byteOffset, hashes.byteLength));
  },
};
const optionalHashes = nullable(packedHashes);
const optionalTier = nullable(tier);

/**
 * Changes and runs encoded as short lists. A block takes eight bytes, where the maps of Dynamo's
 * events take fifty.
 *
 * Changes: stored `["s", tier, parent, hashes, token hashes or nil]`, removed `["r", tier,
 * hashes]`, cleared `["c", tier or nil]`. A run: `[tier, parent, hashes]`.
 */
const change: Codec<ResidencyChange> = {
  write(writer, value) {
    switch (value.kind) {
      case "stored":
        tier.write(writer.array(5).str("s"), value.tier);
        optionalHash.write(writer, value.parent);
        packedHashes.write(writer, value.hashes);
        return optionalHashes.write(writer, value.tokenHashes);
      case "removed":
        tier.write(writer.array(3).str("r"), value.tier);
        return packedHashes.write(writer, value.hashes);
      case "cleared":
        return optionalTier.write(writer.array(2).str("c"), value.tier);
      default:
        return value satisfies never;
    }
  },
  read(reader) {
    const items = reader.array(8);
    const kind = reader.str(1);
    if (kind === "s" && items === 5) {
      const own = { tier: tier.read(reader), parent: optionalHash.read(reader) };
      const hashes = packedHashes.read(reader);
      const tokenHashes = optionalHashes.read(reader);
      if (tokenHashes !== null && tokenHashes.length !== hashes.length) {
        throw new Unreadable("number of token hashes differs from number of blocks");
      }
      return { kind: "stored", ...own, hashes, tokenHashes };
    }
    if (kind === "r" && items === 3) {
      return { kind: "removed", tier: tier.read(reader), hashes: packedHashes.read(reader) };
    }
    if (kind !== "c" || items !== 2) throw new Unreadable("unknown kind of change");
    return { kind: "cleared", tier: optionalTier.read(reader) };
  },
};

/** Consecutive blocks on one tier, parents before children. */
export interface ResidencyRun {
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly hashes: BigUint64Array;
}

const run: Codec<ResidencyRun> = tuple({ tier, parent: optionalHash, hashes: packedHashes });

/** Returns an upper bound of a packed change's bytes, at most a few bytes too high. */
export function packedBytes(change: ResidencyChange): number {
  if (change.kind === "cleared") return CHANGE_BYTES;
  const words = change.kind === "stored" && change.tokenHashes !== null ? 2 : 1;
  return CHANGE_BYTES + change.hashes.length * 8 * words;
}

/** Bytes of an encoded change or run, not counting its hashes. */
export const CHANGE_BYTES = 24;

const incarnation = checked(u64, (value) => value !== 0n, "incarnation is 0");

/** Members that identify the sending worker, rank and run in every message. */
const SOURCE = {
  worker: required(
    "worker",
    checked(label, isWorkerId, "worker is not a valid worker name") as Codec<WorkerId>,
  ),
  rank: required("rank", uint(LIMITS.rankMax)),
  incarnation: required("incarnation", incarnation),
};

const NAMESPACE_BYTES = 32;

const SPACE = struct({
  kind: required("kind", label),
  model: required("model", label),
  blockTokens: required(
    "block_tokens",
    checked(uint(LIMITS.blockTokensMax), (tokens) => tokens > 0, "block_tokens is 0"),
  ),
  namespaceKey: omitted("namespace", binary(NAMESPACE_BYTES), undefined),
  chain: omitted("chain", label, undefined),
});

function spaceOf({ kind, namespaceKey, chain, ...of }: ValueOf<typeof SPACE>): KeySpace | null {
  if (kind === "tokens") return { kind, ...of };
  // A key space of a kind that this version does not know is ignored.
  if (kind !== "blocks") return null;
  if (namespaceKey?.length !== NAMESPACE_BYTES) {
    throw new Unreadable("namespace is not a 32-byte key");
  }
  const space = { kind, ...of, namespaceKey: namespaceKey.slice() } as const;
  return chain === undefined ? space : { ...space, chain };
}

const spaces: Codec<readonly KeySpace[]> = converted(
  list(SPACE, LIMITS.spacesMax),
  (all) => all.map(spaceOf).filter((space) => space !== null),
  (all) => all.map((space) => ({ namespaceKey: undefined, chain: undefined, ...space })),
);

const digests = checked(
  list(tuple({ blocks: number, mix: u64 }), RESIDENCY_TIERS.length),
  ({ length }) => length === RESIDENCY_TIERS.length,
  "there must be one digest per tier",
);

const everyMs = checked(
  uint(LIMITS.everyMsMax),
  (ms) => ms >= LIMITS.everyMsMin,
  "every_ms is out of range",
);

/**
 * Whether all GPU blocks of the rank are published. Earlier versions do not send this member; it is
 * true then.
 */
const isDeviceKnown = defaulted("device_known", bool, true);

const HEARTBEAT: Codec<Omit<ResidencyHeartbeat, "source">> = struct({
  lastSequence: required("last_sequence", number),
  mode: required("mode", oneOf(["ring", "stream"], "mode")),
  everyMs: required("every_ms", everyMs),
  spaces: required("spaces", spaces),
  digests: required("digests", digests),
  isDeviceKnown,
  isClosing: defaulted("is_closing", bool, false),
});

const EVENTS_TOPIC = "kv-events";
const HEARTBEAT_TOPIC = "kv-heartbeat";

/** A message: the members of Dynamo's envelope, followed by Hearth's own. */
const MESSAGE = struct({
  envelope: ENVELOPE_FIELDS,
  source: SOURCE,
  /** Change number of the batch's first change. Absent in heartbeats. */
  firstSequence: omitted("first_sequence", number, null),
});

interface MessageContent {
  readonly source: ResidencySource;
  readonly topic: string;
  readonly sequence: number;
  readonly firstSequence: number | null;
  readonly payload: Uint8Array;
}

function encodeMessage(message: MessageContent, wallMs: number): Uint8Array {
  const { source, topic, sequence, firstSequence, payload } = message;
  const envelope = {
    publisherId: publisherId(source),
    sequence: BigInt(sequence),
    publishedAtMs: BigInt(Math.trunc(wallMs)),
    topic,
    payload,
  };
  return encode(MESSAGE, { envelope, source, firstSequence });
}

const TIERS: Readonly<Record<ResidencyTier, StorageTier>> = {
  device: "device",
  host: "host_pinned",
  disk: "disk",
};

/**
 * Encodes a batch as Dynamo's envelope around Dynamo's events, followed by Hearth's own members:
 * `worker`, `rank`, `incarnation`, `first_sequence`. An event's `event_id` is its change number;
 * its `worker_id` is the worker's number (`workerNumber`). The batch must have at most `changesMax`
 * changes and `blocksMax` blocks (`RESIDENCY_LIMITS`); use `splitBatch` for larger ones.
 */
export function encodeBatch(batch: ResidencyBatch, wallMs: number): Uint8Array {
  const { source, firstSequence, changes } = batch;
  assert(changes.length > 0, "a batch must not be empty");
  assert(changes.length <= LIMITS.changesMax, "a batch must not exceed changesMax");
  const workerId = workerNumber(source.worker);
  const events = changes.map((change, i) =>
    toEvent(change, workerId, source.rank, firstSequence + i),
  );
  const payload = encodeRouterEvents(events);
  const numbers = { sequence: firstSequence, firstSequence };
  return encodeMessage({ source, topic: EVENTS_TOPIC, ...numbers, payload }, wallMs);
}

export function encodeHeartbeat(heartbeat: ResidencyHeartbeat, wallMs: number): Uint8Array {
  const { source, lastSequence: sequence } = heartbeat;
  const payload = encode(HEARTBEAT, heartbeat);
  const content = { source, topic: HEARTBEAT_TOPIC, sequence, firstSequence: null, payload };
  return encodeMessage(content, wallMs);
}

/** A message that publishers send on the events subject: a batch or a heartbeat. */
export type ResidencyMessage =
  | { readonly kind: "batch"; readonly publishedAtMs: number; readonly batch: ResidencyBatch }
  | {
      readonly kind: "heartbeat";
      readonly publishedAtMs: number;
      readonly heartbeat: ResidencyHeartbeat;
    };

/** Decodes an untrusted message of the events subject. Never throws. */
export function decodeResidencyMessage(bytes: Uint8Array): ReadResult<ResidencyMessage> {
  return decode({ read: readMessage }, bytes, LIMITS.messageBytesMax);
}

function readMessage(reader: MsgpackReader): ResidencyMessage {
  const { envelope, source, firstSequence } = MESSAGE.read(reader);
  const { topic, payload } = envelope;
  const publishedAtMs = Number(envelope.publishedAtMs);
  if (topic === HEARTBEAT_TOPIC) {
    const own = decode(HEARTBEAT, payload);
    if (!own.ok) throw new Unreadable(own.why);
    return { kind: "heartbeat", publishedAtMs, heartbeat: { source, ...own.value } };
  }
  if (topic !== EVENTS_TOPIC) throw new Unreadable("unknown topic");
  if (firstSequence === null) throw new Unreadable("first_sequence is missing");
  const batch = readBatch(payload, source, firstSequence);
  return { kind: "batch", publishedAtMs, batch };
}

function readBatch(payload: Uint8Array, source: ResidencySource, first: number): ResidencyBatch {
  const events = decodeRouterEvents(payload);
  if (!events.ok) throw new Unreadable(events.why);
  if (events.value.length === 0 || first === 0) throw new Unreadable("empty batch");
  const changes = events.value.map((of, i) => {
    const isNext = of.event.id === BigInt(first) + BigInt(i) && of.event.rank === source.rank;
    if (!isNext) throw new Unreadable("event is not the next one of its rank");
    return toChange(of);
  });
  return { source, firstSequence: first, changes };
}

function toEvent(
  change: ResidencyChange,
  workerId: bigint,
  rank: number,
  sequence: number,
): RouterEvent {
  const storage = change.tier === null ? "device" : TIERS[change.tier];
  const isTierOnly = change.kind === "cleared" && change.tier !== null;
  const event = { id: BigInt(sequence), data: toData(change), rank };
  return { workerId, tier: storage, domain: null, isTierOnly, event };
}

function toData(change: ResidencyChange): RouterEventData {
  switch (change.kind) {
    case "stored": {
      const { kind, parent, hashes, tokenHashes } = change;
      return { kind, parent, startPosition: null, blocks: { hashes, tokenHashes, media: null } };
    }
    case "removed":
      return { kind: "removed", hashes: change.hashes };
    case "cleared":
      return { kind: "cleared" };
    default:
      return change satisfies never;
  }
}

function toChange({ tier: storage, event: { data }, isTierOnly }: RouterEvent): ResidencyChange {
  if (data.kind === "cleared" && !isTierOnly) return { kind: "cleared", tier: null };
  const own = RESIDENCY_TIERS.find((one) => TIERS[one] === storage);
  if (own === undefined) throw new Unreadable("tier is not local to a worker");
  switch (data.kind) {
    case "stored": {
      const { hashes, tokenHashes } = data.blocks;
      return { kind: "stored", tier: own, parent: data.parent, hashes, tokenHashes };
    }
    case "removed":
      return { kind: "removed", tier: own, hashes: data.hashes };
    case "cleared":
      return { kind: "cleared", tier: own };
    default:
      return data satisfies never;
  }
}

/**
 * Returns the id for Dynamo's envelope. It is the same for all messages of one run of one rank, and
 * almost certainly different from all other ids.
 */
function publisherId({ worker, rank, incarnation }: ResidencySource): bigint {
  return workerNumber(`${worker}/${rank}/${incarnation}`);
}

const QUERY_BYTES_MAX = 1_024;

/** Member of queries: the publisher's run that the consumer expects. Null: any run. */
const expected = { incarnation: defaulted("incarnation", nullable(incarnation), null) };

/** A consumer's query to a publisher, on the queries subject. */
const QUERY = union({
  /** Requests the changes numbered `from` to `to`, inclusive. `to` null: up to the latest. */
  range: {
    ...expected,
    from: required("from", number),
    to: defaulted("to", optionalNumber, null),
  },
  /**
   * Requests part `part` (from 0) of a snapshot. `snapshot` null requests a new snapshot; the reply
   * is its part 0 and contains the snapshot's number, which the consumer uses to query for the
   * other parts.
   */
  snapshot: {
    ...expected,
    snapshot: defaulted("snapshot", optionalHash, null),
    part: required("part", number),
  },
});
export type ResidencyQuery = ValueOf<typeof QUERY>;

export function encodeQuery(query: ResidencyQuery): Uint8Array {
  return encode(QUERY, query);
}

/** Decodes an untrusted query. Never throws. */
export function decodeQuery(bytes: Uint8Array): ReadResult<ResidencyQuery> {
  return decode(QUERY, bytes, QUERY_BYTES_MAX);
}

const WHY_CHARACTERS_MAX = 100;
const firstSequence = required("first_sequence", number);
const lastSequence = required("last_sequence", number);

function packed<T>(codec: Codec<T>): Codec<readonly T[]> {
  return list(codec, LIMITS.packedChangesMax);
}

const ANSWER = union({
  /**
   * As many changes, from the requested number on, as fit in one reply. `lastSequence` is the
   * number of the latest change. The consumer queries again for the rest.
   */
  range: {
    batch: { source: SOURCE, firstSequence, changes: required("changes", packed(change)) },
    lastSequence,
  },
  /**
   * The publisher no longer has the first requested change. The consumer must request a snapshot.
   */
  evicted: { source: SOURCE, firstSequence, lastSequence },
  /** The first requested number is higher than the latest change. */
  too_new: { source: SOURCE, lastSequence },
  /** A part of a snapshot. The snapshot is the state right after change number `sequence`. */
  snapshot: {
    source: SOURCE,
    snapshot: required("snapshot", u64),
    sequence: required("sequence", number),
    part: required("part", number),
    isDeviceKnown,
    isLast: required("is_last", bool),
    runs: required("runs", packed(run)),
  },
  /**
   * The publisher no longer has that snapshot, or it has no such part. The consumer must request
   * another one.
   */
  no_snapshot: { source: SOURCE },
  /**
   * The publisher is in another run than the consumer expects. `source` identifies the current run.
   */
  other_incarnation: { source: SOURCE },
  /** Too many snapshots are being taken. The consumer may try again after `retryMs`. */
  busy: { source: SOURCE, retryMs: required("retry_ms", uint(LIMITS.retryMsMax)) },
  refused: { why: required("why", label) },
});
export type ResidencyAnswer = ValueOf<typeof ANSWER>;
export type ResidencySnapshotPart = Extract<ResidencyAnswer, { kind: "snapshot" }>;

const CHECKED_ANSWER = checked(
  ANSWER,
  (answer) => {
    if (answer.kind !== "range") return true;
    return answer.batch.changes.length > 0 && answer.batch.firstSequence > 0;
  },
  "empty range",
);

export function encodeAnswer(answer: ResidencyAnswer): Uint8Array {
  if (answer.kind !== "refused") return encode(ANSWER, answer);
  return encode(ANSWER, { ...answer, why: answer.why.slice(0, WHY_CHARACTERS_MAX) });
}

/** Decodes an untrusted reply. Never throws. */
export function decodeAnswer(bytes: Uint8Array): ReadResult<ResidencyAnswer> {
  return decode(CHECKED_ANSWER, bytes, LIMITS.messageBytesMax);
}
