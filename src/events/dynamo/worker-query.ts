import { type MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack/index.ts";
import { orNil, present, type ReadResult, reading, readMembers } from "./envelope.ts";
import {
  type RouterEvent,
  type RouterEventLimits,
  readRouterEvents,
  writeRouterEvents,
} from "./router-events.ts";

/** What a router asks a worker that indexes its own blocks: events it missed, or all there is. */
export interface WorkerQuery {
  readonly workerId: bigint;
  readonly rank: number;
  /** Null, both: everything. */
  readonly start: bigint | null;
  readonly end: bigint | null;
  /** Whether the asker knows `dump_failed`. */
  readonly knowsDumpFailed: boolean;
}

export type WorkerAnswer =
  /** In order; may begin at the last `cleared`, and run past `end`. */
  | { readonly kind: "events"; readonly events: readonly RouterEvent[]; readonly lastId: bigint }
  /** All that the rank has, parents first. The events' own ids are made up: go on from `lastId`. */
  | {
      readonly kind: "dump";
      readonly events: readonly RouterEvent[];
      readonly lastId: bigint;
      /** False: of a part only, which readers leave alone. */
      readonly isWhole: boolean;
    }
  /** Keep what you have, and ask again. */
  | { readonly kind: "dump_failed"; readonly lastId: bigint; readonly why: string }
  | {
      readonly kind: "too_new";
      readonly start: bigint | null;
      readonly end: bigint | null;
      readonly newest: bigint;
    }
  | { readonly kind: "invalid_range"; readonly start: bigint; readonly end: bigint }
  | { readonly kind: "error"; readonly why: string };

const RANK_MAX = 65_535;
const TEXT_BYTES_MAX = 4_096;
/** An answer has what an index holds, and not what one message does. */
const ANSWER_LIMITS: RouterEventLimits = { eventsMax: 1_048_576, blocksMax: 4_194_304 };

export function encodeWorkerQuery(query: WorkerQuery): Uint8Array {
  const writer = new MsgpackWriter().map(6);
  writer.str("worker_id").int(query.workerId).str("dp_rank").int(query.rank);
  writeOptional(writer.str("start_event_id"), query.start);
  writeOptional(writer.str("end_event_id"), query.end);
  writer.str("supports_tree_dump_failed").bool(query.knowsDumpFailed);
  return writer.str("kind").str("recovery").done();
}

/** Reads what anybody may have asked; other kinds than `recovery` are not answered here. */
export function decodeWorkerQuery(bytes: Uint8Array): ReadResult<WorkerQuery> {
  return reading(bytes, (reader) => {
    const members = readMembers(reader, QUERY);
    if ((members.kind ?? "recovery") !== "recovery") throw new Unreadable("kind is not known");
    return {
      workerId: present(members.worker_id, "worker_id"),
      rank: present(members.dp_rank, "dp_rank"),
      start: members.start_event_id ?? null,
      end: members.end_event_id ?? null,
      knowsDumpFailed: members.supports_tree_dump_failed ?? false,
    };
  });
}

const QUERY = {
  worker_id: u64,
  dp_rank: (reader: MsgpackReader) => reader.uint(RANK_MAX),
  start_event_id: orNil(u64),
  end_event_id: orNil(u64),
  supports_tree_dump_failed: (reader: MsgpackReader) => reader.bool(),
  kind: text,
};

/** As Dynamo tags them: a map of one member, named by what it is. */
export function encodeWorkerAnswer(answer: WorkerAnswer): Uint8Array {
  const writer = new MsgpackWriter().map(1);
  switch (answer.kind) {
    case "events":
      writeRouterEvents(writer.str("Events").map(2).str("events"), answer.events);
      return writer.str("last_event_id").int(answer.lastId).done();
    case "dump":
      writeRouterEvents(writer.str("TreeDump").map(3).str("events"), answer.events);
      writer.str("last_event_id").int(answer.lastId);
      return writer
        .str("reset_scope")
        .str(answer.isWhole ? "all" : "part")
        .done();
    case "dump_failed":
      writer.str("TreeDumpFailed").map(2).str("last_event_id").int(answer.lastId);
      return writer.str("message").str(answer.why).done();
    case "too_new":
      writeOptional(writer.str("TooNew").map(3).str("requested_start"), answer.start);
      writeOptional(writer.str("requested_end"), answer.end);
      return writer.str("newest_available").int(answer.newest).done();
    case "invalid_range":
      writer.str("InvalidRange").map(2).str("start_id").int(answer.start);
      return writer.str("end_id").int(answer.end).done();
    case "error":
      return writer.str("Error").str(answer.why).done();
    default:
      return answer satisfies never;
  }
}

/** Reads what anybody may have answered. Never throws. */
export function decodeWorkerAnswer(bytes: Uint8Array): ReadResult<WorkerAnswer> {
  return reading(bytes, (reader) => {
    if (reader.map(1) !== 1) throw new Unreadable("an answer without a name");
    const name = text(reader);
    if (name === "Error") return { kind: "error", why: text(reader) };
    const members = readMembers(reader, ANSWER);
    const lastId = () => present(members.last_event_id, "last_event_id");
    switch (name) {
      case "Events":
        return { kind: "events", events: present(members.events, "events"), lastId: lastId() };
      case "TreeDump": {
        const isWhole = (members.reset_scope ?? "all") === "all";
        const events = present(members.events, "events");
        return { kind: "dump", events, lastId: lastId(), isWhole };
      }
      case "TreeDumpFailed":
        return { kind: "dump_failed", lastId: lastId(), why: present(members.message, "message") };
      case "TooNew":
        return {
          kind: "too_new",
          start: members.requested_start ?? null,
          end: members.requested_end ?? null,
          newest: present(members.newest_available, "newest_available"),
        };
      case "InvalidRange":
        return {
          kind: "invalid_range",
          start: present(members.start_id, "start_id"),
          end: present(members.end_id, "end_id"),
        };
      default:
        throw new Unreadable("an answer that is not known");
    }
  });
}

/** Members of all answers. */
const ANSWER = {
  events: (reader: MsgpackReader) => readRouterEvents(reader, ANSWER_LIMITS),
  last_event_id: u64,
  reset_scope: orNil(text),
  message: text,
  requested_start: orNil(u64),
  requested_end: orNil(u64),
  newest_available: u64,
  start_id: u64,
  end_id: u64,
};

function u64(reader: MsgpackReader): bigint {
  return reader.u64();
}

function text(reader: MsgpackReader): string {
  return reader.str(TEXT_BYTES_MAX);
}

function writeOptional(writer: MsgpackWriter, value: bigint | null): void {
  if (value === null) writer.nil();
  else writer.int(value);
}
