import { Dialer, Listener } from "./connections.ts";
import type { Peer } from "./peer.ts";
import { encodeMessage } from "./wire.ts";
import {
  endpointOf,
  formatEndpoint,
  limitsOf,
  type ZmtpMessage,
  type ZmtpOptions,
  type ZmtpPublisher,
  type ZmtpReply,
  type ZmtpRouter,
  type ZmtpState,
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
  /** Called after each connection, when subscriptions are on their way; must not throw. */
  onConnected?(): void;
  /** Called on every disconnect: outstanding requests will not be answered. Must not throw. */
  onDisconnected?(why: string): void;
}

export interface SubscriberOptions extends DealerOptions {
  /** Topic prefixes; an empty one matches all topics. */
  readonly topics: readonly string[];
}

/**
 * A socket that connects to `tcp://host:port` or `ipc://path` and redials with growing waits until
 * it is closed. Messages published meanwhile are lost, which sequence numbers must reveal.
 */
class DialedSocket implements AsyncDisposable {
  readonly endpoint: string;
  readonly #dialer: Dialer;
  #received = 0;

  /** `greeting`: messages sent first on each connection. */
  constructor(type: "SUB" | "DEALER", options: DealerOptions, greeting: readonly Uint8Array[]) {
    const { clock, random } = options;
    const endpoint = endpointOf(options);
    this.endpoint = formatEndpoint(endpoint);
    this.#dialer = new Dialer(endpoint, {
      type,
      limits: limitsOf(options),
      clock,
      random,
      events: {
        onReady: (peer) => {
          for (const message of greeting) peer.send(message);
          options.onConnected?.();
        },
        onMessage: (_peer, message) => {
          this.#received++;
          options.onMessage(message);
        },
        onTopic: () => {},
        onClosed: (_peer, why) => options.onDisconnected?.(why),
      },
    });
  }

  get state(): ZmtpState {
    const { peer, why, isHung, connections, refused, isClosed } = this.#dialer.state;
    const status = isClosed ? "closed" : peer === null ? "connecting" : "connected";
    return { status, why, isHung, connections, received: this.#received, refused };
  }

  /** Returns false, without sending, if the socket is disconnected or its queue is full. */
  send(frames: ZmtpMessage): boolean {
    return this.#dialer.state.peer?.send(encodeMessage(frames)) ?? false;
  }

  /**
   * Stops reading: the peer's queue fills, then the peer drops messages. A few messages may still
   * arrive. The state survives reconnections.
   */
  pause(): void {
    this.#dialer.pause();
  }

  resume(): void {
    this.#dialer.resume();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#dialer.close();
  }
}

/**
 * A requester to a ROUTER (DEALER). A message is a list of frames including the empty delimiter of
 * the envelope; nothing is added or removed.
 */
export type ZmtpDealer = DialedSocket;
/** A subscriber (SUB). Its subscriptions survive reconnections. */
export type ZmtpSubscriber = Omit<DialedSocket, "send">;

/** A connecting DEALER. Throws ZMTP_UNAVAILABLE if the endpoint is invalid. */
export function connectDealer(options: DealerOptions): ZmtpDealer {
  return new DialedSocket("DEALER", options, []);
}

/** A connecting SUB. Throws ZMTP_UNAVAILABLE if the endpoint is invalid. */
export function connectSubscriber(options: SubscriberOptions): ZmtpSubscriber {
  // Sent as messages, which all versions of ZMTP 3 accept.
  const subscriptions = options.topics.map((topic) =>
    encodeMessage([Buffer.concat([Uint8Array.of(SUBSCRIBE), Buffer.from(topic)])]),
  );
  return new DialedSocket("SUB", options, subscriptions);
}
