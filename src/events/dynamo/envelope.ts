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
 * Members of the envelope around every message of Dynamo's event plane, on NATS and ZMQ. Dynamo's
 * readers ignore additional members that come last.
 */
export const ENVELOPE_FIELDS = {
  /** Id of the publisher: a random number below 2^53. */
  publisherId: required("publisher_id", u64),
  sequence: required("sequence", u64),
  /** Publication time in milliseconds since 1970. */
  publishedAtMs: required("published_at", u64),
  topic: required("topic", text(256)),
  /**
   * Content of the message: MessagePack in the format of its topic. A view of the decoded message.
   */
  payload: required("payload", binary(64 * 2 ** 20)),
};
const ENVELOPE = struct(ENVELOPE_FIELDS);

export type DynamoEnvelope = ValueOf<typeof ENVELOPE>;

export function encodeEnvelope(envelope: DynamoEnvelope): Uint8Array {
  return encode(ENVELOPE, envelope);
}

/** Decodes the envelope of an untrusted message. Never throws. */
export function decodeEnvelope(bytes: Uint8Array): ReadResult<DynamoEnvelope> {
  return decode(ENVELOPE, bytes);
}
