import { encodeMessage } from "./frames.ts";
import { Listener } from "./listener.ts";
import { endpointOf, limitsOf, type ZmtpOptions } from "./options.ts";
import type { ZmtpMessage, ZmtpReply, ZmtpRouter } from "./zmtp.ts";

export interface RouterOptions extends ZmtpOptions {
  /** Must not throw. `reply` may be called any number of times, also later. */
  onMessage(message: ZmtpMessage, reply: ZmtpReply): void;
}

/** A ROUTER that listens. Throws ZMTP_UNAVAILABLE where it cannot. */
export async function bindRouter(options: RouterOptions): Promise<ZmtpRouter> {
  const { clock, random } = options;
  const listener = await Listener.open(endpointOf(options), {
    type: "ROUTER",
    limits: limitsOf(options),
    clock,
    random,
    events: {
      onReady: () => {},
      onMessage: (peer, message) =>
        options.onMessage(message, (frames) => peer.send(encodeMessage(frames))),
      onTopic: () => {},
      onClosed: () => {},
    },
  });
  return {
    endpoint: listener.endpoint,
    [Symbol.asyncDispose]: async () => listener.close(),
  };
}
