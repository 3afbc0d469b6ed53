import type { FrameCounts } from "../observability/index.ts";
import { type FrameHandler, type FrameWork, isWork } from "./connection.ts";
import { createGreeting, type GreetingContext } from "./greeting.ts";
import { createHandlers, type HandlerContext } from "./handlers.ts";
import { FrameStatus, Op, type Refusal } from "./protocol/index.ts";

export interface FrameHandlerContext extends GreetingContext, HandlerContext {
  readonly frames: FrameCounts;
}

/** What the agent does with each frame of a connection, from its hello on. */
export function createFrameHandler(context: FrameHandlerContext): FrameHandler {
  const greet = createGreeting(context);
  const handle = createHandlers(context);
  return (connection, frame) => {
    const { greeted } = connection;
    const answered =
      greeted === null || frame.op === Op.hello
        ? greet(connection, frame)
        : handle(connection, frame, greeted.holder);
    if (isWork(answered)) return counted(context.frames, frame.op, answered);
    context.frames.add(frame.op, answered?.status ?? FrameStatus.ok);
    return answered;
  };
}

function* counted(
  frames: FrameCounts,
  op: number,
  work: FrameWork,
): Generator<void, Refusal | null> {
  for (let piece = work.next(); ; piece = work.next()) {
    if (piece.done !== true) {
      yield;
      continue;
    }
    frames.add(op, piece.value?.status ?? FrameStatus.ok);
    return piece.value;
  }
}
