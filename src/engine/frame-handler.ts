import type { FrameCounts } from "../observability/index.ts";
import type { FrameHandler } from "./connection.ts";
import { createGreeting, type GreetingContext } from "./greeting.ts";
import { createHandlers, type HandlerContext } from "./handlers.ts";
import { FrameStatus, Op } from "./protocol/index.ts";

export interface FrameHandlerContext extends GreetingContext, HandlerContext {
  readonly frames: FrameCounts;
}

/** What the agent does with each frame of a connection, from its hello on. */
export function createFrameHandler(context: FrameHandlerContext): FrameHandler {
  const greet = createGreeting(context);
  const handle = createHandlers(context);
  return (connection, frame) => {
    const { greeted } = connection;
    const refused =
      greeted === null || frame.op === Op.hello
        ? greet(connection, frame)
        : handle(connection, frame, greeted.holder);
    context.frames.add(frame.op, refused?.status ?? FrameStatus.ok);
    return refused;
  };
}
