import { orNil, present, type ReadResult, reading, readMembers } from "../dynamo/index.ts";
import { type MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack/index.ts";
import { RESIDENCY_LIMITS, type ResidencyQuestion } from "./messages.ts";
import { readIncarnation } from "./source-codec.ts";

const QUESTION_BYTES_MAX = 1_024;

export function encodeQuestion(question: ResidencyQuestion): Uint8Array {
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

/** Reads what anybody may have asked. Never throws. */
export function decodeQuestion(bytes: Uint8Array): ReadResult<ResidencyQuestion> {
  if (bytes.length > QUESTION_BYTES_MAX) return { ok: false, why: "it is too long" };
  return reading(bytes, readQuestion);
}

function readQuestion(reader: MsgpackReader): ResidencyQuestion {
  const members = readMembers(reader, MEMBERS);
  const { kind, incarnation = null, from, to = null, snapshot = null, part } = members;
  if (kind === "snapshot") {
    return { kind, incarnation, snapshot, part: present(part, "part") };
  }
  if (kind !== "range") throw new Unreadable("kind is not known");
  return { kind, incarnation, from: present(from, "from"), to };
}

const MEMBERS = {
  kind: (reader: MsgpackReader) => reader.str(RESIDENCY_LIMITS.textBytesMax),
  incarnation: orNil(readIncarnation),
  from: (reader: MsgpackReader) => reader.uint(),
  to: orNil((reader) => reader.uint()),
  snapshot: orNil((reader) => reader.u64()),
  part: (reader: MsgpackReader) => reader.uint(),
};
