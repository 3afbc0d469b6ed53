import { assert } from "../../core/index.ts";
import {
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyHeartbeat,
  type ResidencySource,
  type ResidencyTier,
} from "../../observability/activity/index.ts";
import {
  decodeRouterEvents,
  ENVELOPE,
  encodeEnvelope,
  encodeRouterEvents,
  envelopeOf,
  present,
  type ReadResult,
  type RouterEvent,
  type RouterEventData,
  reading,
  readMembers,
  type StorageTier,
  workerNumber,
} from "../dynamo/index.ts";
import { MsgpackReader, Unreadable } from "../msgpack/index.ts";
import { encodeHeartbeatPayload, readHeartbeat } from "./heartbeat-codec.ts";
import { RESIDENCY_LIMITS, type ResidencyMessage } from "./messages.ts";
import { SOURCE, SOURCE_MEMBERS, sourceOf, writeSource } from "./source-codec.ts";

const EVENTS_TOPIC = "kv-events";
const HEARTBEAT_TOPIC = "kv-heartbeat";

const FIRST = "first_sequence" as const;

const TIERS: Readonly<Record<ResidencyTier, StorageTier>> = {
  device: "device",
  host: "host_pinned",
  disk: "disk",
};

/**
 * Dynamo's envelope around Dynamo's events, with our members behind the envelope's own: `worker`,
 * `rank`, `incarnation`, `first_sequence`. An event's `event_id` is its change's number, its
 * `worker_id` the worker's number (`workerNumber`). At most `changesMax` changes and `blocksMax`
 * blocks (`RESIDENCY_LIMITS`): `splitBatch` makes such of larger ones.
 */
export function encodeBatch(batch: ResidencyBatch, wallMs: number): Uint8Array {
  const { source, firstSequence, changes } = batch;
  assert(changes.length > 0, "a batch of something");
  assert(changes.length <= RESIDENCY_LIMITS.changesMax, "a batch that may be sent");
  const workerId = workerNumber(source.worker);
  const events = changes.map((change, i) =>
    toEvent(change, workerId, source.rank, firstSequence + i),
  );
  return encodeEnvelope(
    {
      publisherId: publisherId(source),
      sequence: BigInt(firstSequence),
      publishedAtMs: BigInt(Math.trunc(wallMs)),
      topic: EVENTS_TOPIC,
      payload: encodeRouterEvents(events),
    },
    {
      count: SOURCE_MEMBERS + 1,
      write: (writer) => writeSource(writer, source).str(FIRST).int(firstSequence),
    },
  );
}

export function encodeHeartbeat(heartbeat: ResidencyHeartbeat, wallMs: number): Uint8Array {
  return encodeEnvelope(
    {
      publisherId: publisherId(heartbeat.source),
      sequence: BigInt(heartbeat.lastSequence),
      publishedAtMs: BigInt(Math.trunc(wallMs)),
      topic: HEARTBEAT_TOPIC,
      payload: encodeHeartbeatPayload(heartbeat),
    },
    { count: SOURCE_MEMBERS, write: (writer) => writeSource(writer, heartbeat.source) },
  );
}

/** Reads what anybody may have sent on the subject of events. Never throws. */
export function decodeResidencyMessage(bytes: Uint8Array): ReadResult<ResidencyMessage> {
  if (bytes.length > RESIDENCY_LIMITS.messageBytesMax) return { ok: false, why: "it is too long" };
  return reading(bytes, (reader) => {
    const members = readMembers(reader, MEMBERS);
    const { topic, payload, publishedAtMs: at } = envelopeOf(members);
    const [source, publishedAtMs] = [sourceOf(members), Number(at)];
    if (topic === HEARTBEAT_TOPIC) {
      const heartbeat = readHeartbeat(new MsgpackReader(payload), source);
      return { kind: "heartbeat", publishedAtMs, heartbeat };
    }
    if (topic !== EVENTS_TOPIC) throw new Unreadable("topic is not known");
    const batch = readBatch(payload, source, present(members.first_sequence, FIRST));
    return { kind: "batch", publishedAtMs, batch };
  });
}

const MEMBERS = { ...ENVELOPE, ...SOURCE, [FIRST]: (it: MsgpackReader) => it.uint() };

function readBatch(payload: Uint8Array, source: ResidencySource, first: number): ResidencyBatch {
  const events = decodeRouterEvents(payload);
  if (!events.ok) throw new Unreadable(events.why);
  if (events.value.length === 0 || first === 0) throw new Unreadable("a batch of nothing");
  const changes = events.value.map((event, i) => {
    const isNext = event.eventId === BigInt(first) + BigInt(i) && event.rank === source.rank;
    if (!isNext) throw new Unreadable("an event that is not the next of its rank");
    return toChange(event);
  });
  return { source, firstSequence: first, changes };
}

function toEvent(
  change: ResidencyChange,
  workerId: bigint,
  rank: number,
  sequence: number,
): RouterEvent {
  const tier = change.tier === null ? "device" : TIERS[change.tier];
  const isTierOnly = change.kind === "cleared" && change.tier !== null;
  const data = toData(change);
  return { workerId, tier, domain: null, eventId: BigInt(sequence), rank, data, isTierOnly };
}

function toData(change: ResidencyChange): RouterEventData {
  switch (change.kind) {
    case "stored": {
      const { kind, parent, hashes, tokenHashes } = change;
      return { kind, parent, startPosition: null, hashes, tokenHashes, media: null };
    }
    case "removed":
      return { kind: "removed", hashes: change.hashes };
    case "cleared":
      return { kind: "cleared" };
    default:
      return change satisfies never;
  }
}

function toChange({ tier: storage, data, isTierOnly }: RouterEvent): ResidencyChange {
  if (data.kind === "cleared" && !isTierOnly) return { kind: "cleared", tier: null };
  const tier = RESIDENCY_TIERS.find((one) => TIERS[one] === storage);
  if (tier === undefined) throw new Unreadable("a tier that no worker has of its own");
  switch (data.kind) {
    case "stored": {
      const { kind, parent, hashes, tokenHashes } = data;
      return { kind, tier, parent, hashes, tokenHashes };
    }
    case "removed":
      return { kind: "removed", tier, hashes: data.hashes };
    case "cleared":
      return { kind: "cleared", tier };
    default:
      return data satisfies never;
  }
}

/** The same for all that one run of one rank says, and hardly that of any other. */
function publisherId({ worker, rank, incarnation }: ResidencySource): bigint {
  return workerNumber(`${worker}/${rank}/${incarnation}`);
}
