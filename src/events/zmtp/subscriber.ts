import type { Attachment } from "./attach.ts";
import { Dialer } from "./dialer.ts";
import { formatEndpoint } from "./endpoint.ts";
import { encodeMessage } from "./frames.ts";
import { Listener } from "./listener.ts";
import { endpointOf, limitsOf, type ZmtpOptions } from "./options.ts";
import type { Peer } from "./peer.ts";
import type { ZmtpMessage, ZmtpState, ZmtpSubscriber } from "./zmtp.ts";

export interface SubscriberOptions extends ZmtpOptions {
  /** Beginnings of the topics that are wanted; one that is empty is of all. */
  readonly topics: readonly string[];
  /** Must not throw. The frames are the receiver's own. */
  onMessage(message: ZmtpMessage): void;
  /** Each time a publisher is there, its subscriptions already on their way; must not throw. */
  onConnected?(): void;
  /** Each time one is gone; must not throw. */
  onDisconnected?(why: string): void;
}

/** It goes out as a message: peers of every version of ZMTP 3 take that. */
function subscription(topic: string): Uint8Array {
  return encodeMessage([Buffer.concat([Uint8Array.of(1), Buffer.from(topic)])]);
}

/** What both kinds of subscriber do with a connection; `count.received` goes up. */
function attachmentOf(options: SubscriberOptions, count: { received: number }): Attachment {
  const { clock, random, topics } = options;
  const wanted = topics.map(subscription);
  return {
    type: "SUB",
    limits: limitsOf(options),
    clock,
    random,
    events: {
      onReady: (peer) => {
        for (const message of wanted) peer.send(message);
        options.onConnected?.();
      },
      onMessage: (_peer, message) => {
        count.received++;
        options.onMessage(message);
      },
      onTopic: () => {},
      onClosed: (_peer, why) => options.onDisconnected?.(why),
    },
  };
}

/** A SUB that connects. Throws ZMTP_UNAVAILABLE where the endpoint is none. */
export function connectSubscriber(options: SubscriberOptions): ZmtpSubscriber {
  const endpoint = endpointOf(options);
  const count = { received: 0 };
  const dialer = new Dialer(endpoint, attachmentOf(options, count));
  return {
    endpoint: formatEndpoint(endpoint),
    get state(): ZmtpState {
      const { peer, why, isHung, connections, refused, isClosed } = dialer.state;
      const status = isClosed ? "closed" : peer === null ? "connecting" : "connected";
      return { status, why, isHung, connections, received: count.received, refused };
    },
    pause: () => dialer.pause(),
    resume: () => dialer.resume(),
    [Symbol.asyncDispose]: async () => dialer.close(),
  };
}

/**
 * A SUB that listens, for publishers that connect: an engine whose endpoint is one host's address.
 * Throws ZMTP_UNAVAILABLE where it cannot listen.
 */
export async function bindSubscriber(options: SubscriberOptions): Promise<ZmtpSubscriber> {
  const count = { received: 0 };
  const attachment = attachmentOf(options, count);
  let isPaused = false;
  const onReady = (peer: Peer) => {
    if (isPaused) peer.pause();
    attachment.events.onReady(peer);
  };
  const watched = { ...attachment, events: { ...attachment.events, onReady } };
  const listener = await Listener.open(endpointOf(options), watched);
  let isClosed = false;
  return {
    endpoint: listener.endpoint,
    get state(): ZmtpState {
      const isConnected = [...listener.peers].some((peer) => peer.isOpen);
      const status = isClosed ? "closed" : isConnected ? "connected" : "connecting";
      const why = isClosed ? "closed" : isConnected ? null : "no publisher has connected";
      const { connections, refused } = listener;
      return { status, why, isHung: false, connections, received: count.received, refused };
    },
    pause() {
      isPaused = true;
      for (const peer of listener.peers) peer.pause();
    },
    resume() {
      isPaused = false;
      for (const peer of listener.peers) peer.resume();
    },
    [Symbol.asyncDispose]: async () => {
      isClosed = true;
      listener.close();
    },
  };
}
