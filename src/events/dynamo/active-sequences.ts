import { MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack.ts";
import { orNil, present, type ReadResult, reading, readMembers } from "./envelope.ts";

/** A routing event of one router, as Dynamo's routers exchange them. */
export interface ActiveSequenceEvent {
  readonly requestId: string;
  readonly workerId: bigint;
  readonly rank: number;
  readonly routerId: bigint;
  readonly loraName: string | null;
  readonly data: ActiveSequenceData;
}

export type ActiveSequenceData =
  | {
      readonly kind: "add";
      /** Sequence hashes of the prompt's blocks; null: not tracked. */
      readonly hashes: BigUint64Array | null;
      readonly tracksPrefill: boolean;
      readonly expectedOutputTokens: number | null;
      /** Prompt tokens to compute; null if unknown. */
      readonly prefillTokens: number | null;
      /** Members that only Hearth routers send; others ignore them. */
      readonly hearth: HearthSequence | null;
    }
  | { readonly kind: "free" }
  | { readonly kind: "prefill_complete" };

export interface HearthSequence {
  readonly worker: string;
  readonly promptTokens: number;
  readonly outputTokens: number;
}

/** Maximum events in one message, and maximum blocks of one prompt. */
export const ACTIVE_SEQUENCES_MAX = 256;
const BLOCKS_MAX = 131_072;
const MEMBERS_MAX = 32;
const ID_BYTES_MAX = 1_024;
const NAME_BYTES_MAX = 512;
const RANK_MAX = 65_535;
const TOKENS_MAX = 2 ** 31;

/** Topic and last token of the subject. */
export const ACTIVE_SEQUENCES_TOPIC = "active_sequences_events";

/** Encodes a single event as on NATS, or several as a list as on ZMQ. */
export function encodeActiveSequences(events: readonly ActiveSequenceEvent[]): Uint8Array {
  const writer = new MsgpackWriter();
  const [only] = events;
  if (events.length === 1 && only !== undefined) return write(writer, only).done();
  writer.map(1).str("events").array(events.length);
  for (const event of events) write(writer, event);
  return writer.done();
}

function write(writer: MsgpackWriter, event: ActiveSequenceEvent): MsgpackWriter {
  const { requestId, workerId, rank, routerId, loraName, data } = event;
  writer
    .map(loraName === null ? 4 : 5)
    .str("request_id")
    .str(requestId);
  writer.str("worker").map(2).str("worker_id").int(workerId).str("dp_rank").int(rank);
  writer.str("data");
  if (data.kind === "free") writer.str("Free");
  else if (data.kind === "prefill_complete") writer.str("MarkPrefillCompleted");
  else writeAdd(writer, data);
  writer.str("router_id").int(routerId);
  return loraName === null ? writer : writer.str("lora_name").str(loraName);
}

function writeAdd(writer: MsgpackWriter, data: ActiveSequenceData & { kind: "add" }): void {
  const { hashes, tracksPrefill, expectedOutputTokens, prefillTokens, hearth } = data;
  writer
    .map(1)
    .str("AddRequest")
    .map(hearth === null ? 4 : 5)
    .str("token_sequence");
  if (hashes === null) writer.nil();
  else {
    writer.array(hashes.length);
    for (const hash of hashes) writer.int(hash);
  }
  writer.str("track_prefill_tokens").bool(tracksPrefill).str("expected_output_tokens");
  writeOptional(writer, expectedOutputTokens).str("prefill_load_hint");
  if (prefillTokens === null) writer.nil();
  else {
    writer.map(2).str("initial_effective_prefill_tokens").int(prefillTokens);
    writer.str("expected_prefill_duration").nil();
  }
  if (hearth === null) return;
  writer.str("hearth").map(3).str("worker").str(hearth.worker);
  writer.str("prompt_tokens").int(hearth.promptTokens);
  writer.str("output_tokens").int(hearth.outputTokens);
}

function writeOptional(writer: MsgpackWriter, value: number | null): MsgpackWriter {
  return value === null ? writer.nil() : writer.int(value);
}

/** Decodes an untrusted message in either form. Never throws. */
export function decodeActiveSequences(
  bytes: Uint8Array,
): ReadResult<readonly ActiveSequenceEvent[]> {
  return reading(bytes, (reader) => {
    const isList = new MsgpackReader(bytes).map(MEMBERS_MAX) === 1;
    if (!isList) return [readEvent(reader)];
    return present(readMembers(reader, { events: readEvents }).events, "events");
  });
}

function readEvents(reader: MsgpackReader): ActiveSequenceEvent[] {
  const events: ActiveSequenceEvent[] = [];
  for (let left = reader.array(ACTIVE_SEQUENCES_MAX); left > 0; left--) {
    events.push(readEvent(reader));
  }
  return events;
}

function readEvent(reader: MsgpackReader): ActiveSequenceEvent {
  const members = readMembers(reader, {
    request_id: (it) => it.str(ID_BYTES_MAX),
    worker: readWorker,
    data: readData,
    router_id: (it) => it.u64(),
    lora_name: orNil((it) => it.str(NAME_BYTES_MAX)),
  });
  return {
    requestId: present(members.request_id, "request_id"),
    ...present(members.worker, "worker"),
    routerId: present(members.router_id, "router_id"),
    loraName: members.lora_name ?? null,
    data: present(members.data, "data"),
  };
}

function readWorker(reader: MsgpackReader): { workerId: bigint; rank: number } {
  const members = readMembers(reader, {
    worker_id: (it) => it.u64(),
    dp_rank: (it) => it.uint(RANK_MAX),
  });
  return { workerId: present(members.worker_id, "worker_id"), rank: members.dp_rank ?? 0 };
}

function readData(reader: MsgpackReader): ActiveSequenceData {
  if (reader.kind() === "str") {
    const word = reader.str(NAME_BYTES_MAX);
    if (word === "Free") return { kind: "free" };
    if (word === "MarkPrefillCompleted") return { kind: "prefill_complete" };
    throw new Unreadable("unknown data");
  }
  const isAdd = reader.map(1) === 1 && reader.str(NAME_BYTES_MAX) === "AddRequest";
  if (!isAdd) throw new Unreadable("unknown data");
  const members = readMembers(reader, {
    token_sequence: orNil(readHashes),
    track_prefill_tokens: (it) => it.bool(),
    expected_output_tokens: orNil((it) => it.uint(TOKENS_MAX)),
    prefill_load_hint: orNil(readHint),
    hearth: readHearth,
  });
  return {
    kind: "add",
    hashes: members.token_sequence ?? null,
    tracksPrefill: members.track_prefill_tokens ?? true,
    expectedOutputTokens: members.expected_output_tokens ?? null,
    prefillTokens: members.prefill_load_hint ?? null,
    hearth: members.hearth ?? null,
  };
}

function readHashes(reader: MsgpackReader): BigUint64Array {
  const hashes = new BigUint64Array(reader.array(BLOCKS_MAX));
  for (let at = 0; at < hashes.length; at++) hashes[at] = reader.u64();
  return hashes;
}

function readHint(reader: MsgpackReader): number {
  const members = readMembers(reader, {
    initial_effective_prefill_tokens: (it) => it.uint(TOKENS_MAX),
  });
  return present(members.initial_effective_prefill_tokens, "initial_effective_prefill_tokens");
}

function readHearth(reader: MsgpackReader): HearthSequence {
  const members = readMembers(reader, {
    worker: (it) => it.str(NAME_BYTES_MAX),
    prompt_tokens: (it) => it.uint(TOKENS_MAX),
    output_tokens: (it) => it.uint(TOKENS_MAX),
  });
  return {
    worker: present(members.worker, "worker"),
    promptTokens: present(members.prompt_tokens, "prompt_tokens"),
    outputTokens: present(members.output_tokens, "output_tokens"),
  };
}
