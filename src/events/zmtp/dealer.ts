import { Dialer } from "./dialer.ts";
import { encodeMessage } from "./frames.ts";
import { endpointOf, limitsOf, type ZmtpOptions } from "./options.ts";
import type { ZmtpDealer, ZmtpMessage, ZmtpState } from "./zmtp.ts";

export interface DealerOptions extends ZmtpOptions {
  /** Must not throw. The frames are the receiver's own. */
  onMessage(message: ZmtpMessage): void;
  /** Each time somebody is there to be asked; must not throw. */
  onConnected?(): void;
  /** Each time nobody is any more: what was asked gets no answer; must not throw. */
  onDisconnected?(why: string): void;
}

/** A DEALER that connects. Throws ZMTP_UNAVAILABLE where the endpoint is none. */
export function connectDealer(options: DealerOptions): ZmtpDealer {
  let received = 0;
  const { clock, random } = options;
  const dialer = new Dialer(endpointOf(options), {
    type: "DEALER",
    limits: limitsOf(options),
    clock,
    random,
    events: {
      onReady: () => options.onConnected?.(),
      onMessage: (_peer, message) => {
        received++;
        options.onMessage(message);
      },
      onTopic: () => {},
      onClosed: (_peer, why) => options.onDisconnected?.(why),
    },
  });
  return {
    get state(): ZmtpState {
      const { peer, why, isHung, connections, refused, isClosed } = dialer.state;
      const status = isClosed ? "closed" : peer === null ? "connecting" : "connected";
      return { status, why, isHung, connections, received, refused };
    },
    send: (frames) => dialer.state.peer?.send(encodeMessage(frames)) ?? false,
    pause: () => dialer.pause(),
    resume: () => dialer.resume(),
    [Symbol.asyncDispose]: async () => dialer.close(),
  };
}
