import { type Attachment, Dialer, Listener } from "./connections.ts";
import type { Peer } from "./peer.ts";
import { encodeMessage } from "./wire.ts";
import {
  endpointOf,
  formatEndpoint,
  limitsOf,
  type ZmtpDealer,
  type ZmtpMessage,
  type ZmtpOptions,
  type ZmtpPublisher,
  type ZmtpReply,
  type ZmtpRouter,
  type ZmtpState,
  type ZmtpSubscriber,
} from "./zmtp.ts";

const UNSUBSCRIBE = 0;
const SUBSCRIBE = 1;

/** A listening PUB. Throws ZMTP_UNAVAILABLE if it cannot listen. */
export async function bindPublisher(options: ZmtpOptions): Promise<ZmtpPublisher> {
  const limits = limitsOf(options);
  const wishes = new Map<Peer, Topics>();
  let dropped = 0;
  const onTopic = (peer: Peer, topic: Uint8Array, isWanted: boolean) => {
    const topics = wishes.get(peer);
    if (!isWanted) topics?.remove(topic);
    else if (topic.length > limits.topicBytesMax || topics?.add(topic) === false) {
      peer.close("too many or too long subscriptions");
    }
  };
  const { clock, random } = options;
  const listener = await Listener.open(endpointOf(options), {
    type: "PUB",
    limits,
    clock,
    random,
    events: {
      onReady: (peer) => wishes.set(peer, new Topics(limits.subscriptionsMax)),
      onMessage: (peer, message) => {
        const [wish] = message;
        if (message.length !== 1 || wish === undefined) return;
        const isWish = wish[0] === SUBSCRIBE || wish[0] === UNSUBSCRIBE;
        if (isWish) onTopic(peer, wish.subarray(1), wish[0] === SUBSCRIBE);
      },
      onTopic,
      onClosed: (peer) => wishes.delete(peer),
    },
  });
  return {
    endpoint: listener.endpoint,
    get subscribers() {
      return [...wishes.values()].filter((topics) => topics.size > 0).length;
    },
    get dropped() {
      return dropped;
    },
    publish(frames) {
      const topic = topicOf(frames);
      let encoded: Uint8Array | null = null;
      for (const [peer, topics] of wishes) {
        if (!topics.match(topic)) continue;
        encoded ??= encodeMessage(frames);
        if (!peer.send(encoded)) dropped++;
      }
    },
    [Symbol.asyncDispose]: async () => listener.close(),
  };
}

/** Maps each byte to a character, so that any bytes can be compared. */
function topicOf(frames: ZmtpMessage): string {
  return Buffer.from(frames[0] ?? new Uint8Array()).toString("latin1");
}

/**
 * Topic prefixes of one subscriber. Subscriptions are counted: a repeated one must be cancelled as
 * often.
 */
class Topics {
  readonly #counts = new Map<string, number>();
  readonly #max: number;

  constructor(max: number) {
    this.#max = max;
  }

  /** Number of distinct prefixes. */
  get size(): number {
    return this.#counts.size;
  }

  /** Returns false if the limits are exceeded. */
  add(topic: Uint8Array): boolean {
    const key = Buffer.from(topic).toString("latin1");
    const count = this.#counts.get(key) ?? 0;
    if (count === 0 && this.#counts.size >= this.#max) return false;
    this.#counts.set(key, count + 1);
    return true;
  }

  remove(topic: Uint8Array): void {
    const key = Buffer.from(topic).toString("latin1");
    const count = this.#counts.get(key) ?? 0;
    if (count > 1) this.#counts.set(key, count - 1);
    else this.#counts.delete(key);
  }

  /** `topic`: one character per byte. */
  match(topic: string): boolean {
    if (this.#counts.has("")) return true;
    for (const wanted of this.#counts.keys()) if (topic.startsWith(wanted)) return true;
    return false;
  }
}

export interface RouterOptions extends ZmtpOptions {
  /** Must not throw. `reply` may be called any number of times, also later. */
  onMessage(message: ZmtpMessage, reply: ZmtpReply): void;
}

/** A listening ROUTER. Throws ZMTP_UNAVAILABLE if it cannot listen. */
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

export interface DealerOptions extends ZmtpOptions {
  /** Must not throw. The receiver owns the frames. */
  onMessage(message: ZmtpMessage): void;
  /** Called after each connection; must not throw. */
  onConnected?(): void;
  /** Called on every disconnect: outstanding requests will not be answered. Must not throw. */
  onDisconnected?(why: string): void;
}

/** A connecting DEALER. Throws ZMTP_UNAVAILABLE if the endpoint is invalid. */
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

export interface SubscriberOptions extends ZmtpOptions {
  /** Topic prefixes; an empty one matches all topics. */
  readonly topics: readonly string[];
  /** Must not throw. The receiver owns the frames. */
  onMessage(message: ZmtpMessage): void;
  /** Called after each connection, when the subscriptions are on their way; must not throw. */
  onConnected?(): void;
  /** Called on every disconnect; must not throw. */
  onDisconnected?(why: string): void;
}

/** Sent as a message, which all versions of ZMTP 3 accept. */
function subscription(topic: string): Uint8Array {
  return encodeMessage([Buffer.concat([Uint8Array.of(1), Buffer.from(topic)])]);
}

/** Handling of connections shared by both kinds of subscriber; increments `count.received`. */
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

/** A connecting SUB. Throws ZMTP_UNAVAILABLE if the endpoint is invalid. */
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
 * A listening SUB for publishers that connect, such as an engine whose endpoint is a single host's
 * address. Throws ZMTP_UNAVAILABLE if it cannot listen.
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
