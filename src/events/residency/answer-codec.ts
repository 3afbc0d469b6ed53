import { present, type ReadResult, reading, readMembers } from "../dynamo/index.ts";
import { type MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack/index.ts";
import { RESIDENCY_LIMITS, type ResidencyAnswer } from "./messages.ts";
import { readChange, readRun, writeChange, writeRun } from "./packed.ts";
import { SOURCE, SOURCE_MEMBERS, sourceOf, writeSource } from "./source-codec.ts";

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

/** Reads what a publisher, or anybody who says so, has answered. Never throws. */
export function decodeAnswer(bytes: Uint8Array): ReadResult<ResidencyAnswer> {
  if (bytes.length > RESIDENCY_LIMITS.messageBytesMax) return { ok: false, why: "it is too long" };
  return reading(bytes, readAnswer);
}

/** All members of any answer; which must be there is its kind's affair. */
const MEMBERS = {
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
  const members = readMembers(reader, MEMBERS);
  const { kind } = members;
  if (kind === "refused") return { kind, why: present(members.why, "why") };
  const source = sourceOf(members);
  const last = () => present(members.last_sequence, "last_sequence");
  const first = () => present(members.first_sequence, "first_sequence");
  switch (kind) {
    case "range": {
      const changes = present(members.changes, "changes");
      if (changes.length === 0 || first() === 0) throw new Unreadable("a range of nothing");
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
        // Earlier versions do not say it.
        isDeviceKnown: members.device_known ?? true,
        runs: present(members.runs, "runs"),
      };
    case "no_snapshot":
    case "other_incarnation":
      return { kind, source };
    case "busy":
      return { kind, source, retryMs: present(members.retry_ms, "retry_ms") };
    default:
      throw new Unreadable("kind is not known");
  }
}

function uint(reader: MsgpackReader): number {
  return reader.uint();
}

function text(reader: MsgpackReader): string {
  return reader.str(RESIDENCY_LIMITS.textBytesMax);
}

function readList<T>(reader: MsgpackReader, read: (reader: MsgpackReader) => T): readonly T[] {
  const count = reader.array(RESIDENCY_LIMITS.packedChangesMax);
  return Array.from({ length: count }, () => read(reader));
}
