import { encodeMessage } from "./frames.ts";
import { Listener } from "./listener.ts";
import { endpointOf, limitsOf, type ZmtpOptions } from "./options.ts";
import type { Peer } from "./peer.ts";
import { Topics } from "./topics.ts";
import type { ZmtpMessage, ZmtpPublisher } from "./zmtp.ts";

const UNSUBSCRIBE = 0;
const SUBSCRIBE = 1;

/** A PUB that listens. Throws ZMTP_UNAVAILABLE where it cannot. */
export async function bindPublisher(options: ZmtpOptions): Promise<ZmtpPublisher> {
  const limits = limitsOf(options);
  const wishes = new Map<Peer, Topics>();
  let dropped = 0;
  const onTopic = (peer: Peer, topic: Uint8Array, isWanted: boolean) => {
    const topics = wishes.get(peer);
    if (!isWanted) topics?.remove(topic);
    else if (topic.length > limits.topicBytesMax || topics?.add(topic) === false) {
      peer.close("more subscriptions than may be, or longer ones");
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

/** Each byte a character, so that any bytes can be compared. */
function topicOf(frames: ZmtpMessage): string {
  return Buffer.from(frames[0] ?? new Uint8Array()).toString("latin1");
}
