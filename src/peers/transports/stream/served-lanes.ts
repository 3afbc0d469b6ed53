import { messageOf } from "../../../core/index.ts";
import type { Cipher, LaneLink, LaneSession, Lanes } from "../../../native/index.ts";
import {
  ANSWERED_HERE,
  BEFORE_HELLO,
  type LinkRoom,
  pullOf,
  type ServedPayload,
} from "../line/index.ts";
import { CONTROL_VERSION, type StreamMessage } from "./control/index.ts";
import { ServedPull } from "./served-pull.ts";

export interface LanesHost {
  readonly lanes: Lanes;
  readonly lanesPort: number;
  /** Those that this side allows. */
  readonly ciphers: readonly Cipher[];
  readonly lanesMax: number;
}

const NUMBERS_END = 2 ** 32;

type Hello = Extract<StreamMessage, { kind: "hello" }>;
type Pull = Extract<StreamMessage, { kind: "pull" }>;

/** The lanes over which a link's blocks leave, from the asker's hello on. */
export class ServedLanes implements ServedPayload<StreamMessage> {
  readonly #room: LinkRoom<StreamMessage>;
  readonly #host: LanesHost;
  readonly #pulls = new Map<number, ServedPull>();
  #session: Promise<LaneLink> | null = null;
  #lanes: LaneLink | null = null;

  constructor(room: LinkRoom<StreamMessage>, host: LanesHost) {
    this.#room = room;
    this.#host = host;
  }

  get isGreeted(): boolean {
    return this.#session !== null;
  }

  take(message: StreamMessage): string | null {
    if (message.kind === "hello") return this.#greet(message);
    const lanes = this.#session;
    if (lanes === null) return BEFORE_HELLO;
    switch (message.kind) {
      case "pull":
        return this.#startPull(message, lanes);
      case "go": {
        const pull = this.#pulls.get(message.id);
        if (pull === undefined) return null;
        return pull.go(message.index, message.transfer) ? null : "it said go for nothing";
      }
      default:
        return ANSWERED_HERE;
    }
  }

  #greet(hello: Hello): string | null {
    if (this.#session !== null) return "it said hello twice";
    const { ciphers, lanes, lanesPort, lanesMax } = this.#host;
    const { limits } = this.#room.host;
    const cipher = hello.ciphers.find((theirs) => ciphers.includes(theirs));
    if (cipher === undefined) {
      this.#room.end("refused", "no cipher is allowed on both sides");
      return null;
    }
    const session: LaneSession = {
      id: crypto.getRandomValues(new Uint8Array(16)),
      secret: crypto.getRandomValues(new Uint8Array(32)),
      cipher,
      lanes: Math.min(hello.lanes, lanesMax),
    };
    this.#session = lanes.expect(session, limits.setUpMs);
    this.#session.then(
      (link) => this.#open(link),
      (thrown) => this.#room.end("broken", `its lanes did not come: ${messageOf(thrown)}`),
    );
    const version = Math.min(hello.version, CONTROL_VERSION);
    // The other side's count of what is under way runs a little behind ours.
    const requests = Math.max(1, Math.floor(limits.linkRequestsMax / 2));
    this.#room.line.send({ kind: "welcome", version, port: lanesPort, requests, session });
    return null;
  }

  #open(link: LaneLink): void {
    this.#room.opened();
    this.#lanes = link;
    if (this.#room.isOver) void link[Symbol.asyncDispose]();
    else link.ended.then((fault) => this.#room.end("broken", `its lanes ended: ${fault}`));
  }

  #startPull(message: Pull, lanes: Promise<LaneLink>): string | null {
    const { id, transfer, announced } = message;
    const request = pullOf(message.body);
    if (typeof request === "string") return request;
    const isAnnounced = announced <= request.items.length && transfer + announced <= NUMBERS_END;
    if (!isAnnounced) return "it announced what cannot be";
    const { peer, line, host } = this.#room;
    const { server, clock, limits, log } = host;
    return this.#room.startPull(id, () => {
      const pull = new ServedPull({
        ...{ id, transfer, announced, request, peer, line, lanes },
        ...{ server, clock, limits, log },
        onWrong: (why) => this.#room.end("protocol", why),
      });
      this.#pulls.set(id, pull);
      const run = () => pull.run().finally(() => this.#pulls.delete(id));
      return { run, cancel: () => pull.cancel() };
    });
  }

  async close(): Promise<void> {
    await this.#lanes?.[Symbol.asyncDispose]();
  }
}
