import {
  binary,
  decode,
  encode,
  type ReadResult,
  required,
  struct,
  text,
  u64,
  type ValueOf,
} from "../fields.ts";

/**
 * Members of Dynamo's envelope of all messages on its event plane, over NATS and ZMQ. Its readers
 * ignore members after them.
 */
export const ENVELOPE_FIELDS = {
  /** Random, below 2^53. */
  publisherId: required("publisher_id", u64),
  sequence: required("sequence", u64),
  /** Milliseconds since 1970. */
  publishedAtMs: required("published_at", u64),
  topic: required("topic", text(256)),
  /** MessagePack in the format of the topic. A view of the decoded message. */
  payload: required("payload", binary(64 * 2 ** 20)),
};
const ENVELOPE = struct(ENVELOPE_FIELDS);

export type DynamoEnvelope = ValueOf<typeof ENVELOPE>;

export function encodeEnvelope(envelope: DynamoEnvelope): Uint8Array {
  return encode(ENVELOPE, envelope);
}

/** Decodes an untrusted message. Never throws. */
export function decodeEnvelope(bytes: Uint8Array): ReadResult<DynamoEnvelope> {
  return decode(ENVELOPE, bytes);
}
