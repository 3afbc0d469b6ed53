import { MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack.ts";

/** Dynamo's envelope of all messages on its event plane, over NATS and ZMQ. */
export interface DynamoEnvelope {
  /** Random, below 2^53. */
  readonly publisherId: bigint;
  readonly sequence: bigint;
  /** Milliseconds since 1970. */
  readonly publishedAtMs: bigint;
  readonly topic: string;
  /** MessagePack in the format of the topic. */
  readonly payload: Uint8Array;
}

export type ReadResult<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly why: string };

const TOPIC_BYTES_MAX = 256;
const NAME_BYTES_MAX = 256;
const PAYLOAD_BYTES_MAX = 64 * 1024 * 1024;
const MEMBERS_MAX = 32;

/** Members after Dynamo's own, which its readers ignore. */
export interface MoreMembers {
  readonly count: number;
  write(writer: MsgpackWriter): void;
}

export function encodeEnvelope(envelope: DynamoEnvelope, more?: MoreMembers): Uint8Array {
  const writer = new MsgpackWriter().map(5 + (more?.count ?? 0));
  writer.str("publisher_id").int(envelope.publisherId);
  writer.str("sequence").int(envelope.sequence);
  writer.str("published_at").int(envelope.publishedAtMs);
  writer.str("topic").str(envelope.topic);
  writer.str("payload").bin(envelope.payload);
  more?.write(writer);
  return writer.done();
}

/** `payload` is a view of the input. */
export function decodeEnvelope(bytes: Uint8Array): ReadResult<DynamoEnvelope> {
  return reading(bytes, (reader) => envelopeOf(readMembers(reader, ENVELOPE)));
}

/** Readers of the envelope's own members; other readers may be combined with them. */
export const ENVELOPE = {
  publisher_id: (reader: MsgpackReader) => reader.u64(),
  sequence: (reader: MsgpackReader) => reader.u64(),
  published_at: (reader: MsgpackReader) => reader.u64(),
  topic: (reader: MsgpackReader) => reader.str(TOPIC_BYTES_MAX),
  payload: (reader: MsgpackReader) => reader.bin(PAYLOAD_BYTES_MAX),
};

export function envelopeOf(members: Members<typeof ENVELOPE>): DynamoEnvelope {
  return {
    publisherId: present(members.publisher_id, "publisher_id"),
    sequence: present(members.sequence, "sequence"),
    publishedAtMs: present(members.published_at, "published_at"),
    topic: present(members.topic, "topic"),
    payload: present(members.payload, "payload"),
  };
}

/** Reads one value without trailing bytes. An `Unreadable` becomes the result's `why`. */
export function reading<T>(bytes: Uint8Array, read: (reader: MsgpackReader) => T): ReadResult<T> {
  try {
    const reader = new MsgpackReader(bytes);
    const value = read(reader);
    if (!reader.isAtEnd) throw new Unreadable("trailing bytes");
    return { ok: true, value };
  } catch (thrown) {
    if (thrown instanceof Unreadable) return { ok: false, why: thrown.message };
    throw thrown;
  }
}

/** Like `readMembers`, for members that are read in steps. */
export function* memberSteps(
  reader: MsgpackReader,
  shape: Shape,
): Generator<void, Readonly<Record<string, unknown>>> {
  const members: Record<string, unknown> = {};
  for (let left = reader.map(MEMBERS_MAX); left > 0; left--) {
    const name = reader.str(NAME_BYTES_MAX);
    if (!Object.hasOwn(shape, name)) {
      yield* reader.skipSteps();
      continue;
    }
    if (Object.hasOwn(members, name)) throw new Unreadable(`${name} is duplicated`);
    members[name] = yield* inSteps(shape[name]!(reader));
  }
  return members;
}

/** Returns the value of a reader, or the result of its steps. */
export function* inSteps(read: unknown): Generator<void, unknown> {
  const isGenerator = typeof read === "object" && read !== null && Symbol.iterator in read;
  return isGenerator && "next" in read ? yield* read as Generator<void, unknown> : read;
}

export type Shape = Readonly<Record<string, (reader: MsgpackReader) => unknown>>;
export type Members<S extends Shape> = { readonly [K in keyof S]?: ReturnType<S[K]> };

/** Reads the members of a map, each at most once. Members that are not in `shape` are skipped. */
export function readMembers<S extends Shape>(reader: MsgpackReader, shape: S): Members<S> {
  const members: Record<string, unknown> = {};
  for (let left = reader.map(MEMBERS_MAX); left > 0; left--) {
    const name = reader.str(NAME_BYTES_MAX);
    if (!Object.hasOwn(shape, name)) {
      reader.skip();
      continue;
    }
    if (Object.hasOwn(members, name)) throw new Unreadable(`${name} is duplicated`);
    members[name] = shape[name]!(reader);
  }
  return members as Members<S>;
}

/** Reads nil, or a value with `read`. */
export function orNil<T>(read: (reader: MsgpackReader) => T): (reader: MsgpackReader) => T | null {
  return (reader) => (reader.nil() ? null : read(reader));
}

export function present<T>(value: T | undefined, name: string): T {
  if (value === undefined) throw new Unreadable(`${name} is missing`);
  return value;
}
