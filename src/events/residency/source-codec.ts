import { isWorkerId, type WorkerId } from "../../core/index.ts";
import type { ResidencySource } from "../../observability/activity/index.ts";
import { type Members, present } from "../dynamo/index.ts";
import { type MsgpackReader, type MsgpackWriter, Unreadable } from "../msgpack/index.ts";
import { RESIDENCY_LIMITS } from "./messages.ts";

/** Members by which a source is named, wherever it is. */
export const SOURCE_MEMBERS = 3;

export function writeSource(writer: MsgpackWriter, source: ResidencySource): MsgpackWriter {
  writer.str("worker").str(source.worker).str("rank").int(source.rank);
  return writer.str("incarnation").int(source.incarnation);
}

/** Readers of those members. */
export const SOURCE = {
  worker: readWorker,
  rank: (reader: MsgpackReader) => reader.uint(RESIDENCY_LIMITS.rankMax),
  incarnation: readIncarnation,
};

export function sourceOf(members: Members<typeof SOURCE>): ResidencySource {
  return {
    worker: present(members.worker, "worker"),
    rank: present(members.rank, "rank"),
    incarnation: present(members.incarnation, "incarnation"),
  };
}

function readWorker(reader: MsgpackReader): WorkerId {
  const worker = reader.str(RESIDENCY_LIMITS.textBytesMax);
  if (!isWorkerId(worker)) throw new Unreadable("worker is no worker's name");
  return worker;
}

export function readIncarnation(reader: MsgpackReader): bigint {
  const incarnation = reader.u64();
  if (incarnation === 0n) throw new Unreadable("incarnation is 0");
  return incarnation;
}
