import { assert } from "../core/index.ts";
import type { HandleBatch } from "../store/index.ts";
import type { Connection, Greeted } from "./connection.ts";
import {
  encodeOutcomesReply,
  type FrameHead,
  type OutcomeOp,
  wantsReply,
} from "./protocol/index.ts";

/** What handlers of frames share. */

export function greetedOf(connection: Connection): Greeted {
  assert(connection.greeted !== null, "a handler runs after the hello");
  return connection.greeted;
}

export function answerOutcomes(
  connection: Connection,
  frame: FrameHead,
  handles: HandleBatch,
): void {
  if (!wantsReply(frame)) return;
  encodeOutcomesReply(connection.output, frame.op as OutcomeOp, frame.requestId, handles);
}

export function answerOne(
  connection: Connection,
  frame: FrameHead,
  handles: HandleBatch,
  outcome: number,
): void {
  handles.count = 1;
  handles.outcome[0] = outcome;
  answerOutcomes(connection, frame, handles);
}
