import { assert, isWorkerId, type WorkerId } from "../../core/index.ts";
import {
  type KeySpace,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyDigest,
  type ResidencyHeartbeat,
  type ResidencySource,
  type ResidencyTier,
} from "../../observability/activity/index.ts";
import {
  ENVELOPE,
  encodeEnvelope,
  envelopeOf,
  type Members,
  orNil,
  present,
  type ReadResult,
  reading,
  readMembers,
} from "../dynamo/envelope.ts";
import { workerNumber } from "../dynamo/hashes.ts";
import {
  decodeRouterEvents,
  encodeRouterEvents,
  type RouterEvent,
  type RouterEventData,
  type StorageTier,
} from "../dynamo/router-events.ts";
import { MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack.ts";
import {
  RESIDENCY_LIMITS,
  type ResidencyAnswer,
  type ResidencyMessage,
  type ResidencyQuery,
  type ResidencyRun,
} from "./messages.ts";

/**
 * Changes and runs as short lists, with hashes as bytes, each a little-endian u64: eight bytes per
 * block, where the maps of Dynamo's events take fifty.
 *
 * `["s", tier, parent, hashes, token hashes or nil]`, `["r", tier, hashes]`, `["c", tier or nil]`;
 * a run: `[tier, parent, hashes]`. A tier is its index in RESIDENCY_TIERS.
 */
export function writeChange(writer: MsgpackWriter, change: ResidencyChange): void {
  switch (change.kind) {
    case "stored":
      writer.array(5).str("s").int(placeOf(change.tier));
      writeHash(writer, change.parent);
      writer.bin(bytesOf(change.hashes));
      if (change.tokenHashes === null) writer.nil();
      else writer.bin(bytesOf(change.tokenHashes));
      return;
    case "removed":
      writer.array(3).str("r").int(placeOf(change.tier)).bin(bytesOf(change.hashes));
      return;
    case "cleared":
      writer.array(2).str("c");
      if (change.tier === null) writer.nil();
      else writer.int(placeOf(change.tier));
      return;
    default:
      change satisfies never;
  }
}

export function readChange(reader: MsgpackReader): ResidencyChange {
  const items = reader.array(8);
  const kind = reader.str(1);
  if (kind === "s" && items === 5) {
    const tier = readTier(reader);
    const parent = readHash(reader);
    const hashes = readHashes(reader);
    const tokenHashes = reader.nil() ? null : readHashes(reader);
    if (tokenHashes !== null && tokenHashes.length !== hashes.length) {
      throw new Unreadable("number of token hashes differs from number of blocks");
    }
    return { kind: "stored", tier, parent, hashes, tokenHashes };
  }
  if (kind === "r" && items === 3) {
    return { kind: "removed", tier: readTier(reader), hashes: readHashes(reader) };
  }
  if (kind !== "c" || items !== 2) throw new Unreadable("unknown kind of change");
  return { kind: "cleared", tier: reader.nil() ? null : readTier(reader) };
}

export function writeRun(writer: MsgpackWriter, run: ResidencyRun): void {
  writer.array(3).int(placeOf(run.tier));
  writeHash(writer, run.parent);
  writer.bin(bytesOf(run.hashes));
}

export function readRun(reader: MsgpackReader): ResidencyRun {
  if (reader.array(3) !== 3) throw new Unreadable("run is not a list of three");
  return { tier: readTier(reader), parent: readHash(reader), hashes: readHashes(reader) };
}

/** Upper bound of the bytes written by `writeChange`, accurate to a few bytes. */
export function packedBytes(change: ResidencyChange): number {
  if (change.kind === "cleared") return CHANGE_BYTES;
  const words = change.kind === "stored" && change.tokenHashes !== null ? 2 : 1;
  return CHANGE_BYTES + change.hashes.length * 8 * words;
}

/** Bytes of a change or run without its hashes. */
export const CHANGE_BYTES = 24;

function placeOf(tier: ResidencyTier): number {
  return RESIDENCY_TIERS.indexOf(tier);
}

function readTier(reader: MsgpackReader): ResidencyTier {
  return RESIDENCY_TIERS[reader.uint(RESIDENCY_TIERS.length - 1)]!;
}

function writeHash(writer: MsgpackWriter, hash: bigint | null): void {
  if (hash === null) writer.nil();
  else writer.int(hash);
}

function readHash(reader: MsgpackReader): bigint | null {
  return reader.nil() ? null : reader.u64();
}

/** All hosts supported by Bun are little-endian. */
function bytesOf(hashes: BigUint64Array): Uint8Array {
  return new Uint8Array(hashes.buffer, hashes.byteOffset, hashes.byteLength);
}

function readHashes(reader: MsgpackReader): BigUint64Array {
  const bytes = reader.bin(RESIDENCY_LIMITS.messageBytesMax);
  if (bytes.length % 8 !== 0) throw new Unreadable("hashes are not a multiple of eight bytes");
  // A copy is aligned to eight bytes; the `slice` of a Buffer is not.
  return new BigUint64Array(new Uint8Array(bytes).buffer);
}

/** Members that name a source in every message. */
const SOURCE_MEMBERS = 3;

function writeSource(writer: MsgpackWriter, source: ResidencySource): MsgpackWriter {
  writer.str("worker").str(source.worker).str("rank").int(source.rank);
  return writer.str("incarnation").int(source.incarnation);
}

/** Readers of those members. */
const SOURCE = {
  worker: readWorker,
  rank: (reader: MsgpackReader) => reader.uint(RESIDENCY_LIMITS.rankMax),
  incarnation: readIncarnation,
};

function sourceOf(members: Members<typeof SOURCE>): ResidencySource {
  return {
    worker: present(members.worker, "worker"),
    rank: present(members.rank, "rank"),
    incarnation: present(members.incarnation, "incarnation"),
  };
}

function readWorker(reader: MsgpackReader): WorkerId {
  const worker = reader.str(RESIDENCY_LIMITS.textBytesMax);
  if (!isWorkerId(worker)) throw new Unreadable("worker is not a valid worker name");
  return worker;
}

function readIncarnation(reader: MsgpackReader): bigint {
  const incarnation = reader.u64();
  if (incarnation === 0n) throw new Unreadable("incarnation is 0");
  return incarnation;
}

const NAMESPACE_BYTES = 32;

function encodeHeartbeatPayload(heartbeat: ResidencyHeartbeat): Uint8Array {
  const { lastSequence, mode, everyMs, spaces, digests } = heartbeat;
  const writer = new MsgpackWriter().map(7);
  writer.str("last_sequence").int(lastSequence);
  writer.str("mode").str(mode);
  writer.str("every_ms").int(everyMs);
  writer.str("spaces").array(spaces.length);
  for (const space of spaces) writeSpace(writer, space);
  writer.str("digests").array(digests.length);
  for (const { blocks, mix } of digests) writer.array(2).int(blocks).int(mix);
  writer.str("device_known").bool(heartbeat.isDeviceKnown);
  writer.str("is_closing").bool(heartbeat.isClosing);
  return writer.done();
}

function writeSpace(writer: MsgpackWriter, space: KeySpace): void {
  const chain = space.kind === "blocks" ? space.chain : undefined;
  writer.map(space.kind === "tokens" ? 3 : chain === undefined ? 4 : 5);
  writer.str("kind").str(space.kind);
  writer.str("model").str(space.model);
  writer.str("block_tokens").int(space.blockTokens);
  if (space.kind === "blocks") writer.str("namespace").bin(space.namespaceKey);
  if (chain !== undefined) writer.str("chain").str(chain);
}

function readHeartbeat(reader: MsgpackReader, source: ResidencySource): ResidencyHeartbeat {
  const members = readMembers(reader, HEARTBEAT_MEMBERS);
  if (!reader.isAtEnd) throw new Unreadable("trailing bytes");
  return {
    source,
    lastSequence: present(members.last_sequence, "last_sequence"),
    mode: present(members.mode, "mode"),
    everyMs: present(members.every_ms, "every_ms"),
    spaces: present(members.spaces, "spaces"),
    digests: present(members.digests, "digests"),
    // Earlier versions omit this member.
    isDeviceKnown: members.device_known ?? true,
    isClosing: members.is_closing ?? false,
  };
}

const HEARTBEAT_MEMBERS = {
  last_sequence: (reader: MsgpackReader) => reader.uint(),
  mode: readMode,
  every_ms: readEvery,
  spaces: readSpaces,
  digests: readDigests,
  device_known: (reader: MsgpackReader) => reader.bool(),
  is_closing: (reader: MsgpackReader) => reader.bool(),
};

function readMode(reader: MsgpackReader): ResidencyHeartbeat["mode"] {
  const mode = text(reader);
  if (mode !== "ring" && mode !== "stream") throw new Unreadable("unknown mode");
  return mode;
}

function readEvery(reader: MsgpackReader): number {
  const everyMs = reader.uint(RESIDENCY_LIMITS.everyMsMax);
  if (everyMs < RESIDENCY_LIMITS.everyMsMin) throw new Unreadable("every_ms is out of range");
  return everyMs;
}

function readSpaces(reader: MsgpackReader): readonly KeySpace[] {
  const count = reader.array(RESIDENCY_LIMITS.spacesMax);
  const spaces = Array.from({ length: count }, () => readSpace(reader));
  // Key spaces of a kind unknown to this version are ignored.
  return spaces.filter((space) => space !== null);
}

function readSpace(reader: MsgpackReader): KeySpace | null {
  const members = readMembers(reader, SPACE);
  const kind = present(members.kind, "kind");
  const model = present(members.model, "model");
  const blockTokens = present(members.block_tokens, "block_tokens");
  if (blockTokens === 0) throw new Unreadable("block_tokens is 0");
  if (kind === "tokens") return { kind, model, blockTokens };
  if (kind !== "blocks") return null;
  const namespaceKey = present(members.namespace, "namespace").slice();
  if (namespaceKey.length !== NAMESPACE_BYTES)
    throw new Unreadable("namespace is not a 32-byte key");
  const space = { kind, model, blockTokens, namespaceKey } as const;
  return members.chain === undefined ? space : { ...space, chain: members.chain };
}

const SPACE = {
  kind: text,
  model: text,
  block_tokens: (reader: MsgpackReader) => reader.uint(RESIDENCY_LIMITS.blockTokensMax),
  namespace: (reader: MsgpackReader) => reader.bin(NAMESPACE_BYTES),
  chain: text,
};

function text(reader: MsgpackReader): string {
  return reader.str(RESIDENCY_LIMITS.textBytesMax);
}

function readDigests(reader: MsgpackReader): readonly ResidencyDigest[] {
  const count = reader.array(RESIDENCY_TIERS.length);
  if (count !== RESIDENCY_TIERS.length) throw new Unreadable("there must be one digest per tier");
  return Array.from({ length: count }, () => {
    if (reader.array(2) !== 2) throw new Unreadable("digest is not a pair");
    return { blocks: reader.uint(), mix: reader.u64() };
  });
}

const EVENTS_TOPIC = "kv-events";
const HEARTBEAT_TOPIC = "kv-heartbeat";

const FIRST = "first_sequence" as const;

const TIERS: Readonly<Record<ResidencyTier, StorageTier>> = {
  device: "device",
  host: "host_pinned",
  disk: "disk",
};

/**
 * Encodes Dynamo's envelope around Dynamo's events, with Hearth's members after the envelope's own:
 * `worker`, `rank`, `incarnation`, `first_sequence`. An event's `event_id` is its change number,
 * and its `worker_id` is the worker's number (`workerNumber`). The batch must have at most
 * `changesMax` changes and `blocksMax` blocks (`RESIDENCY_LIMITS`); `splitBatch` splits larger
 * ones.
 */
export function encodeBatch(batch: ResidencyBatch, wallMs: number): Uint8Array {
  const { source, firstSequence, changes } = batch;
  assert(changes.length > 0, "a batch must not be empty");
  assert(changes.length <= RESIDENCY_LIMITS.changesMax, "a batch must not exceed changesMax");
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

/** Decodes an untrusted message of the events subject. Never throws. */
export function decodeResidencyMessage(bytes: Uint8Array): ReadResult<ResidencyMessage> {
  if (bytes.length > RESIDENCY_LIMITS.messageBytesMax)
    return { ok: false, why: "message is too long" };
  return reading(bytes, (reader) => {
    const members = readMembers(reader, MESSAGE_MEMBERS);
    const { topic, payload, publishedAtMs: at } = envelopeOf(members);
    const [source, publishedAtMs] = [sourceOf(members), Number(at)];
    if (topic === HEARTBEAT_TOPIC) {
      const heartbeat = readHeartbeat(new MsgpackReader(payload), source);
      return { kind: "heartbeat", publishedAtMs, heartbeat };
    }
    if (topic !== EVENTS_TOPIC) throw new Unreadable("unknown topic");
    const batch = readBatch(payload, source, present(members.first_sequence, FIRST));
    return { kind: "batch", publishedAtMs, batch };
  });
}

const MESSAGE_MEMBERS = { ...ENVELOPE, ...SOURCE, [FIRST]: (it: MsgpackReader) => it.uint() };

function readBatch(payload: Uint8Array, source: ResidencySource, first: number): ResidencyBatch {
  const events = decodeRouterEvents(payload);
  if (!events.ok) throw new Unreadable(events.why);
  if (events.value.length === 0 || first === 0) throw new Unreadable("empty batch");
  const changes = events.value.map((event, i) => {
    const isNext = event.eventId === BigInt(first) + BigInt(i) && event.rank === source.rank;
    if (!isNext) throw new Unreadable("event is not the next one of its rank");
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
  if (tier === undefined) throw new Unreadable("tier is not local to a worker");
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

/**
 * The same for all messages of one run of one rank, and almost certainly different from any other.
 */
function publisherId({ worker, rank, incarnation }: ResidencySource): bigint {
  return workerNumber(`${worker}/${rank}/${incarnation}`);
}

const QUESTION_BYTES_MAX = 1_024;

export function encodeQuery(question: ResidencyQuery): Uint8Array {
  const writer = new MsgpackWriter().map(4);
  writer.str("kind").str(question.kind);
  writer.str("incarnation");
  writeOptional(writer, question.incarnation);
  switch (question.kind) {
    case "range":
      writer.str("from").int(question.from).str("to");
      return writeOptional(writer, question.to).done();
    case "snapshot":
      writer.str("snapshot");
      return writeOptional(writer, question.snapshot).str("part").int(question.part).done();
    default:
      return question satisfies never;
  }
}

function writeOptional(writer: MsgpackWriter, value: number | bigint | null): MsgpackWriter {
  return value === null ? writer.nil() : writer.int(value);
}

/** Decodes an untrusted query. Never throws. */
export function decodeQuery(bytes: Uint8Array): ReadResult<ResidencyQuery> {
  if (bytes.length > QUESTION_BYTES_MAX) return { ok: false, why: "message is too long" };
  return reading(bytes, readQuestion);
}

function readQuestion(reader: MsgpackReader): ResidencyQuery {
  const members = readMembers(reader, QUESTION_MEMBERS);
  const { kind, incarnation = null, from, to = null, snapshot = null, part } = members;
  if (kind === "snapshot") {
    return { kind, incarnation, snapshot, part: present(part, "part") };
  }
  if (kind !== "range") throw new Unreadable("unknown kind");
  return { kind, incarnation, from: present(from, "from"), to };
}

const QUESTION_MEMBERS = {
  kind: (reader: MsgpackReader) => reader.str(RESIDENCY_LIMITS.textBytesMax),
  incarnation: orNil(readIncarnation),
  from: (reader: MsgpackReader) => reader.uint(),
  to: orNil((reader) => reader.uint()),
  snapshot: orNil((reader) => reader.u64()),
  part: (reader: MsgpackReader) => reader.uint(),
};

export function encodeAnswer(answer: ResidencyAnswer): Uint8Array {
  const writer = new MsgpackWriter();
  const begin = (members: number) => {
    writer.map(1 + (answer.kind === "refused" ? 0 : SOURCE_MEMBERS) + members);
    return writer.str("kind").str(answer.kind);
  };
  switch (answer.kind) {
    case "range": {
      const { source, firstSequence, changes } = answer.batch;
      writeSource(begin(3), source).str("first_sequence").int(firstSequence);
      writer.str("last_sequence").int(answer.lastSequence).str("changes").array(changes.length);
      for (const change of changes) writeChange(writer, change);
      return writer.done();
    }
    case "evicted":
      writeSource(begin(2), answer.source).str("first_sequence").int(answer.firstSequence);
      return writer.str("last_sequence").int(answer.lastSequence).done();
    case "too_new":
      writeSource(begin(1), answer.source);
      return writer.str("last_sequence").int(answer.lastSequence).done();
    case "snapshot": {
      writeSource(begin(6), answer.source).str("snapshot").int(answer.snapshot);
      writer.str("sequence").int(answer.sequence).str("part").int(answer.part);
      writer.str("device_known").bool(answer.isDeviceKnown);
      writer.str("is_last").bool(answer.isLast).str("runs").array(answer.runs.length);
      for (const run of answer.runs) writeRun(writer, run);
      return writer.done();
    }
    case "no_snapshot":
    case "other_incarnation":
      return writeSource(begin(0), answer.source).done();
    case "busy":
      return writeSource(begin(1), answer.source).str("retry_ms").int(answer.retryMs).done();
    case "refused":
      return begin(1).str("why").str(answer.why.slice(0, WHY_MAX)).done();
    default:
      return answer satisfies never;
  }
}

const WHY_MAX = 100;

/** Decodes an untrusted answer. Never throws. */
export function decodeAnswer(bytes: Uint8Array): ReadResult<ResidencyAnswer> {
  if (bytes.length > RESIDENCY_LIMITS.messageBytesMax)
    return { ok: false, why: "message is too long" };
  return reading(bytes, readAnswer);
}

/** Members of all answers. Each kind checks which must be present. */
const ANSWER_MEMBERS = {
  ...SOURCE,
  kind: text,
  first_sequence: uint,
  last_sequence: uint,
  sequence: uint,
  snapshot: (reader: MsgpackReader) => reader.u64(),
  part: uint,
  is_last: (reader: MsgpackReader) => reader.bool(),
  device_known: (reader: MsgpackReader) => reader.bool(),
  retry_ms: (reader: MsgpackReader) => reader.uint(RESIDENCY_LIMITS.retryMsMax),
  changes: (reader: MsgpackReader) => readList(reader, readChange),
  runs: (reader: MsgpackReader) => readList(reader, readRun),
  why: text,
};

function readAnswer(reader: MsgpackReader): ResidencyAnswer {
  const members = readMembers(reader, ANSWER_MEMBERS);
  const { kind } = members;
  if (kind === "refused") return { kind, why: present(members.why, "why") };
  const source = sourceOf(members);
  const last = () => present(members.last_sequence, "last_sequence");
  const first = () => present(members.first_sequence, "first_sequence");
  switch (kind) {
    case "range": {
      const changes = present(members.changes, "changes");
      if (changes.length === 0 || first() === 0) throw new Unreadable("empty range");
      return { kind, batch: { source, firstSequence: first(), changes }, lastSequence: last() };
    }
    case "evicted":
      return { kind, source, firstSequence: first(), lastSequence: last() };
    case "too_new":
      return { kind, source, lastSequence: last() };
    case "snapshot":
      return {
        kind,
        source,
        snapshot: present(members.snapshot, "snapshot"),
        sequence: present(members.sequence, "sequence"),
        part: present(members.part, "part"),
        isLast: present(members.is_last, "is_last"),
        // Earlier versions omit this member.
        isDeviceKnown: members.device_known ?? true,
        runs: present(members.runs, "runs"),
      };
    case "no_snapshot":
    case "other_incarnation":
      return { kind, source };
    case "busy":
      return { kind, source, retryMs: present(members.retry_ms, "retry_ms") };
    default:
      throw new Unreadable("unknown kind");
  }
}

function uint(reader: MsgpackReader): number {
  return reader.uint();
}

function readList<T>(reader: MsgpackReader, read: (reader: MsgpackReader) => T): readonly T[] {
  const count = reader.array(RESIDENCY_LIMITS.packedChangesMax);
  return Array.from({ length: count }, () => read(reader));
}
