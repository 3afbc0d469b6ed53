import { MsgpackReader } from "../../core/index.ts";
import {
  bool,
  converted,
  decode,
  defaulted,
  encode,
  hashList,
  list,
  nullable,
  omitted,
  type ReadResult,
  required,
  skipped,
  struct,
  tagged,
  text,
  u64,
  uint,
  type ValueOf,
} from "../fields.ts";

/** Topic of routing events on ZMQ, and last token of their subject on NATS. */
export const ACTIVE_SEQUENCES_TOPIC = "active_sequences_events";

/** Maximum events in one message, and maximum blocks of one prompt. */
export const ACTIVE_SEQUENCES_MAX = 256;
const BLOCKS_MAX = 131_072;
const MEMBERS_MAX = 32;
const name = text(512);
const tokenCount = uint(2 ** 31);

const HINT = struct({
  prefillTokens: required("initial_effective_prefill_tokens", tokenCount),
  duration: defaulted("expected_prefill_duration", skipped, null),
});
const prefillTokens = converted(
  HINT,
  (hint) => hint.prefillTokens,
  (tokens) => ({ prefillTokens: tokens, duration: null }),
);

const REQUEST = struct({
  /** Sequence hashes of the prompt's blocks; null if the sending router does not track blocks. */
  hashes: defaulted("token_sequence", nullable(hashList(BLOCKS_MAX)), null),
  tracksPrefill: defaulted("track_prefill_tokens", bool, true),
  expectedOutputTokens: defaulted("expected_output_tokens", nullable(tokenCount), null),
  /** Number of prompt tokens that the worker must compute; null if unknown. */
  prefillTokens: defaulted("prefill_load_hint", nullable(prefillTokens), null),
  /** Members that only Hearth's routers send; Dynamo's routers ignore them. */
  hearth: omitted(
    "hearth",
    struct({
      worker: required("worker", name),
      promptTokens: required("prompt_tokens", tokenCount),
      outputTokens: required("output_tokens", tokenCount),
    }),
    null,
  ),
});

const EVENT = struct({
  requestId: required("request_id", text(1_024)),
  worker: required(
    "worker",
    struct({ id: required("worker_id", u64), rank: defaulted("dp_rank", uint(65_535), 0) }),
  ),
  data: required(
    "data",
    tagged({
      add: { tag: "AddRequest", codec: REQUEST },
      free: { tag: "Free" },
      prefill_complete: { tag: "MarkPrefillCompleted" },
    }),
  ),
  routerId: required("router_id", u64),
  loraName: omitted("lora_name", nullable(name), null),
});
const EVENTS = struct({ events: required("events", list(EVENT, ACTIVE_SEQUENCES_MAX)) });

/** A routing event of one router, in the format that Dynamo's routers exchange. */
export type ActiveSequenceEvent = ValueOf<typeof EVENT>;
export type ActiveSequenceData = ActiveSequenceEvent["data"];

/** Encodes one event alone, as on NATS, or several as a list, as on ZMQ. */
export function encodeActiveSequences(events: readonly ActiveSequenceEvent[]): Uint8Array {
  const [only] = events;
  return events.length === 1 && only ? encode(EVENT, only) : encode(EVENTS, { events });
}

/** Decodes an untrusted message in either form of `encodeActiveSequences`. Never throws. */
export function decodeActiveSequences(
  bytes: Uint8Array,
): ReadResult<readonly ActiveSequenceEvent[]> {
  return decode(
    {
      read(reader) {
        const isList = new MsgpackReader(bytes).map(MEMBERS_MAX) === 1;
        return isList ? EVENTS.read(reader).events : [EVENT.read(reader)];
      },
    },
    bytes,
  );
}
