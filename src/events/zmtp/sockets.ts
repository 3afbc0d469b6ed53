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

/** Creates a PUB socket that listens. Throws ZMTP_UNAVAILABLE if it cannot listen. */
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

/**
 * Returns the topic of a message as a string with one character per byte, so that topics of any
 * bytes can be compared.
 */
function topicOf(frames: ZmtpMessage): string {
  return Buffer.from(frames[0] ?? new Uint8Array()).toString("latin1");
}

/**
 * Topic prefixes that one peer subscribed to. Subscriptions are counted: a prefix subscribed to
 * twice must also be cancelled twice.
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

  /** Adds a subscription. Returns false if that would exceed the limits. */
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

  /** Returns true if a prefix matches `topic`, which has one character per byte. */
  match(topic: string): boolean {
    if (this.#counts.has("")) return true;
    for (const wanted of this.#counts.keys()) if (topic.startsWith(wanted)) return true;
    return false;
  }
}

export interface RouterOptions extends ZmtpOptions {
  /**
   * Called for each message. Must not throw. `reply` may be called any number of times, also after
   * this method has returned.
   */
  onMessage(message: ZmtpMessage, reply: ZmtpReply): void;
}

/** Creates a ROUTER socket that listens. Throws ZMTP_UNAVAILABLE if it cannot listen. */
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
  /** Called for each message. Must not throw. The receiver owns the frames. */
  onMessage(message: ZmtpMessage): void;
  /**
   * Called for each new connection, once the subscriptions are queued to be sent. Must not throw.
   */
  onConnected?(): void;
  /** Called on every disconnect. Outstanding requests will not get a reply. Must not throw. */
  onDisconnected?(why: string): void;
}

export interface SubscriberOptions extends DealerOptions {
  /** Prefixes of the topics to receive; an empty one matches all topics. */
  readonly topics: readonly string[];
}

/**
 * A socket that connects to `tcp://host:port` or `ipc://path` and redials with growing waits until
 * it is closed. Messages published while it is disconnected are lost; the receiver detects that by
 * their sequence numbers.
 */
class DialedSocket implements AsyncDisposable {
  readonly endpoint: string;
  readonly #dialer: Dialer;
  #received = 0;

  /** `greeting`: encoded messages to send first on each new connection. */
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

  /**
   * Queues a message. Returns false, without sending it, if the socket is disconnected or its queue
   * is full.
   */
  send(frames: ZmtpMessage): boolean {
    return this.#dialer.state.peer?.send(encodeMessage(frames)) ?? false;
  }

  /**
   * Stops reading from the peer. A few messages may still arrive; then the peer's queue fills and
   * the peer drops messages. A paused socket stays paused when it reconnects.
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
 * A DEALER socket, which sends requests to a ROUTER. A message is the complete list of frames, with
 * the empty delimiter frame of the envelope; the socket adds and removes nothing.
 */
export type ZmtpDealer = DialedSocket;
/** A SUB socket. It sends its subscriptions again after each reconnection. */
export type ZmtpSubscriber = Omit<DialedSocket, "send">;

/** Creates a DEALER socket that connects. Throws ZMTP_UNAVAILABLE if the endpoint is invalid. */
export function connectDealer(options: DealerOptions): ZmtpDealer {
  return new DialedSocket("DEALER", options, []);
}

/** Creates a SUB socket that connects. Throws ZMTP_UNAVAILABLE if the endpoint is invalid. */
export function connectSubscriber(options: SubscriberOptions): ZmtpSubscriber {
  // Subscriptions are sent as messages, which all versions of ZMTP 3 accept, not as commands.
  const subscriptions = options.topics.map((topic) =>
    encodeMessage([Buffer.concat([Uint8Array.of(SUBSCRIBE), Buffer.from(topic)])]),
  );
  return new DialedSocket("SUB", options, subscriptions);
}
