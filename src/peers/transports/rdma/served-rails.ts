import { messageOf } from "../../../core/index.ts";
import { NativeError, type RdmaAddress, type RdmaLink } from "../../../native/index.ts";
import {
  ANSWERED_HERE,
  BEFORE_HELLO,
  type LinkRoom,
  pullOf,
  type ServedPayload,
} from "../line/index.ts";
import { CONTROL_VERSION, type RdmaMessage } from "./control/index.ts";
import type { RdmaLimits } from "./limits.ts";
import type { RailLinks } from "./rail-links.ts";
import { RdmaServedPull } from "./served-pull.ts";

type Hello = Extract<RdmaMessage, { kind: "hello" }>;
type Pull = Extract<RdmaMessage, { kind: "pull" }>;

/**
 * The queue pairs out of which a link's blocks are read, from the asker's hello on.
 *
 * States: waiting for the hello → made, waiting for the asker's → joined.
 */
export class ServedRails implements ServedPayload<RdmaMessage> {
  readonly #room: LinkRoom<RdmaMessage>;
  readonly #rails: RailLinks;
  readonly #limits: RdmaLimits;
  readonly #pulls = new Map<number, RdmaServedPull>();
  /** Null before the hello. */
  #links: readonly RdmaLink[] | null = null;
  #isJoined = false;

  constructor(room: LinkRoom<RdmaMessage>, rails: RailLinks, limits: RdmaLimits) {
    this.#room = room;
    this.#rails = rails;
    this.#limits = limits;
  }

  get isGreeted(): boolean {
    return this.#isJoined;
  }

  take(message: RdmaMessage): string | null {
    if (message.kind === "hello") return this.#greet(message);
    if (this.#links === null) return BEFORE_HELLO;
    if (message.kind === "join") return this.#join(message.addresses, this.#links);
    if (!this.#isJoined) return "it asked before it said which queue pairs it has";
    switch (message.kind) {
      case "pull":
        return this.#startPull(message, this.#links);
      case "taken": {
        const pull = this.#pulls.get(message.id);
        if (pull === undefined) return null;
        return pull.taken(message.index) ? null : "it took what it was not lent";
      }
      default:
        return ANSWERED_HERE;
    }
  }

  #greet({ version, wanted, rails }: Hello): string | null {
    if (this.#links !== null) return "it said hello twice";
    const { line, host } = this.#room;
    try {
      const made = this.#rails.answer(rails, wanted);
      this.#links = made.map(({ link }) => link);
      if (made.length === 0) {
        this.#room.end("refused", "no RDMA port here reaches one of its own");
        return null;
      }
      for (const { ended } of this.#links) {
        void ended.then((fault) => this.#room.end("broken", `its queue pair ended: ${fault}`));
      }
      const pairs = made.map(({ rail, link }) => ({ rail, address: link.address }));
      // The other side's count of what is under way runs a little behind ours.
      const requests = Math.max(1, Math.floor(host.limits.linkRequestsMax / 2));
      line.send({
        ...{ kind: "welcome", version: Math.min(version, CONTROL_VERSION), requests, pairs },
      });
    } catch (thrown) {
      this.#refuse(thrown);
    }
    return null;
  }

  #join(addresses: readonly RdmaAddress[], links: readonly RdmaLink[]): string | null {
    if (this.#isJoined) return "it joined twice";
    if (addresses.length !== links.length) return "it joined with other rails than were chosen";
    try {
      for (const [index, link] of links.entries()) link.connect(addresses[index]!);
      this.#isJoined = true;
      this.#room.opened();
    } catch (thrown) {
      this.#refuse(thrown);
    }
    return null;
  }

  /** What the device refuses is none of the other side's faults. */
  #refuse(thrown: unknown): void {
    if (!(thrown instanceof NativeError)) throw thrown;
    const { host, peer } = this.#room;
    const fields = { peer: peer.worker, why: messageOf(thrown) };
    host.log("warn", "no queue pair could be made for a peer", fields);
    this.#room.end("refused", "no queue pair could be made for it");
  }

  #startPull({ id, body }: Pull, links: readonly RdmaLink[]): string | null {
    const request = pullOf(body);
    if (typeof request === "string") return request;
    const { peer, line, host } = this.#room;
    const { server, clock, log } = host;
    return this.#room.startPull(id, () => {
      const own = { id, request, peer, line, links, server, clock, log };
      const pull = new RdmaServedPull({ ...own, limits: this.#limits });
      this.#pulls.set(id, pull);
      const run = () => pull.run().finally(() => this.#pulls.delete(id));
      return { run, cancel: () => pull.cancel() };
    });
  }

  async close(): Promise<void> {
    await Promise.all((this.#links ?? []).map((link) => link[Symbol.asyncDispose]()));
    for (const pull of [...this.#pulls.values()]) pull.linkEnded();
  }
}
