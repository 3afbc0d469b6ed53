import { type Clock, messageOf } from "../../../core/index.ts";
import type { FrameHeader } from "../../messages.ts";
import type {
  LinkFaultKind,
  PeerServer,
  Served,
  ServedBlock,
  TransportLog,
} from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import { encodeFrame, encodeRefusal, OpenItems } from "../../wire/index.ts";
import type { LineLimits } from "./limits.ts";
import type { MessageLine } from "./message-line.ts";
import type { PullRequest } from "./served-link.ts";

/** How a pull's blocks leave. */
export interface Sender {
  /** Item `index` is answered with this part of the wire and no block. */
  refuse(index: number, body: Uint8Array): void;
  /**
   * A block is lent for item `index`, until `release` of it is called. `isAsked`: its header fits
   * what was asked for. Throws where the header breaks the rules of the wire.
   */
  send(index: number, block: ServedBlock, isAsked: boolean): void;
  /** The pull is given up: what was lent to it comes back as soon as nobody reads it. */
  giveUp(indexes: readonly number[]): void;
}

export interface ServedItemsOptions {
  readonly id: number;
  readonly request: PullRequest;
  readonly peer: PeerIdentity;
  readonly server: PeerServer;
  readonly line: Pick<MessageLine<never>, "send" | "isFull" | "room">;
  readonly clock: Clock;
  readonly limits: LineLimits;
  readonly log: TransportLog;
}

/**
 * One pull as the side that has the blocks sees it, whatever carries them. Every block that is lent
 * comes back exactly once.
 */
export class ServedItems {
  readonly #options: ServedItemsOptions;
  readonly #sender: Sender;
  readonly #abort = new AbortController();
  readonly #lent = new Map<number, ServedBlock>();
  readonly #left: Set<number>;
  /** What was asked for: a block that is something else is not sent before the asker said so. */
  readonly #asked: OpenItems;
  #lentBytes = 0;
  /** Wakes the one that waits for less to be lent. */
  #wake: (() => void) | null = null;

  constructor(options: ServedItemsOptions, sender: Sender) {
    this.#options = options;
    this.#sender = sender;
    const { namespace, items } = options.request;
    this.#left = new Set(items.keys());
    this.#asked = new OpenItems(namespace, items);
  }

  get isGivenUp(): boolean {
    return this.#abort.signal.aborted;
  }

  /** Serves until all is sent or given up. `ready`: blocks can be sent. Never throws. */
  async run(ready: Promise<boolean>): Promise<void> {
    const { clock, limits, request, line, id } = this.#options;
    const wholeMs = Math.min(request.deadlineMs, limits.requestMs);
    using _ = clock.after(wholeMs, () => this.cancel());
    if (!(await ready)) return;
    const fault = await this.#serve();
    while (this.#lent.size > 0) await this.#lessLent();
    if (this.#left.size > 0) line.send({ kind: "end", id, ...fault });
  }

  cancel(): void {
    this.#abort.abort();
    this.#sender.giveUp([...this.#lent.keys()]);
    this.#wake?.();
  }

  /** Whether item `index` was answered, so that what is said of it is late. */
  isAnswered(index: number): boolean {
    return index < this.#options.request.items.length && !this.#left.has(index);
  }

  /** Why what is left was not answered. */
  async #serve(): Promise<{ readonly fault: LinkFaultKind; readonly why: string }> {
    const { server, peer, request, line, log } = this.#options;
    const { signal } = this.#abort;
    try {
      for await (const served of server.serve(peer, request, signal)) {
        this.#take(served);
        if (this.#left.size === 0) break;
        while (!signal.aborted && this.#isFull()) await this.#lessLent();
        while (!signal.aborted && line.isFull) await line.room();
        if (signal.aborted) break;
      }
    } catch (thrown) {
      log("error", "a pull could not be served", { peer: peer.worker, why: messageOf(thrown) });
      return { fault: "broken", why: "the blocks could not be served" };
    }
    if (signal.aborted) return { fault: "stalled", why: "the time for it was over" };
    return { fault: "broken", why: "some blocks were left out" };
  }

  #take(served: Served): void {
    const { log, peer } = this.#options;
    const { index } = served;
    if (!this.#left.has(index)) {
      log("error", "a block was served that is not asked for", { peer: peer.worker, index });
      if (served.kind === "block") served.release();
      return;
    }
    if (served.kind !== "block") {
      this.#sender.refuse(index, encodeRefusal(index, served));
      this.#left.delete(index);
      return;
    }
    if (this.isGivenUp) {
      served.release();
      return;
    }
    const { header } = served;
    this.#lent.set(index, served);
    this.#lentBytes += header.bytes;
    const isAsked = this.#asked.take({ kind: "frame", index, header }) === null;
    this.#sender.send(index, served, isAsked);
    this.#left.delete(index);
  }

  /** Throws where the header breaks the rules of the wire; then the block is let go of. */
  frame(index: number, header: FrameHeader): Uint8Array {
    try {
      return encodeFrame(index, header);
    } catch (thrown) {
      this.release(index);
      throw thrown;
    }
  }

  /** Its header was said, but it will not come. */
  lose(index: number): void {
    const { line, id } = this.#options;
    line.send({ kind: "lost", id, index });
    this.release(index);
  }

  /** Nobody reads it any more. */
  release(index: number): void {
    const block = this.#lent.get(index);
    if (block === undefined) return;
    this.#lent.delete(index);
    this.#lentBytes -= block.header.bytes;
    block.release();
    this.#wake?.();
  }

  #isFull(): boolean {
    const { lentMax, lentBytesMax } = this.#options.limits;
    return this.#lent.size >= lentMax || this.#lentBytes >= lentBytesMax;
  }

  #lessLent(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = () => {
        this.#wake = null;
        resolve();
      };
    });
  }
}
