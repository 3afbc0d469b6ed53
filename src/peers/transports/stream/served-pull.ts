import { type Clock, messageOf } from "../../../core/index.ts";
import { type LaneLink, NativeError } from "../../../native/index.ts";
import type { FrameHeader, PeerRequest } from "../../messages.ts";
import type {
  LinkFaultKind,
  PeerServer,
  Served,
  ServedBlock,
  TransportLog,
} from "../../transport.ts";
import type { PeerIdentity } from "../../trust.ts";
import { encodeFrame, encodeRefusal, OpenItems } from "../../wire/index.ts";
import type { StreamLimits } from "./limits.ts";
import type { MessageLine } from "./message-line.ts";

type PullRequest = Extract<PeerRequest, { op: "pull" }>;

export interface ServedPullOptions {
  readonly id: number;
  /** The first `announced` items are awaited as transfers from here on. */
  readonly transfer: number;
  readonly announced: number;
  readonly request: PullRequest;
  readonly peer: PeerIdentity;
  readonly server: PeerServer;
  readonly line: MessageLine;
  /** Rejects, or never comes, where the link ends before. */
  readonly lanes: Promise<LaneLink>;
  readonly clock: Clock;
  readonly limits: StreamLimits;
  readonly log: TransportLog;
  /** The asker says what cannot be: its link has to end. */
  onWrong(why: string): void;
}

/** What is lent to a pull, and what becomes of it. */
interface Lent {
  readonly block: ServedBlock;
  /** Under which it is sent; null: it waits for the asker's place. */
  transfer: number | null;
}

/**
 * One pull as the side that has the blocks sees it. Every block that was lent is let go of exactly
 * once: when its last byte is out, or as soon as nothing reads it after the pull was given up.
 */
export class ServedPull {
  readonly #options: ServedPullOptions;
  readonly #abort = new AbortController();
  readonly #lent = new Map<number, Lent>();
  readonly #left: Set<number>;
  /** What was asked for: a block that is something else is not sent before the asker said so. */
  readonly #asked: OpenItems;
  #lanes: LaneLink | null = null;
  #lentBytes = 0;
  /** Wakes the one that waits for less to be lent. */
  #wake: (() => void) | null = null;

  constructor(options: ServedPullOptions) {
    this.#options = options;
    const { namespace, items } = options.request;
    this.#left = new Set(items.keys());
    this.#asked = new OpenItems(namespace, items);
  }

  /** Serves until all is sent or given up. Never throws. */
  async run(): Promise<void> {
    const { clock, limits, request } = this.#options;
    const wholeMs = Math.min(request.deadlineMs, limits.requestMs);
    using _ = clock.after(wholeMs, () => this.cancel());
    this.#lanes = await this.#options.lanes.catch(() => null);
    if (this.#lanes === null) return;
    const fault = await this.#serve();
    while (this.#lent.size > 0) await this.#lessLent();
    if (this.#left.size > 0)
      this.#options.line.send({ kind: "end", id: this.#options.id, ...fault });
  }

  /** Gives it up: what is lent comes back as soon as nothing reads it. */
  cancel(): void {
    this.#abort.abort();
    for (const [index, { transfer }] of this.#lent) {
      if (transfer === null) this.#lose(index);
      else this.#lanes?.cancel(transfer);
    }
    this.#wake?.();
  }

  /** There is a place for a block whose header was sent. False: it never waited for one. */
  go(index: number, transfer: number): boolean {
    const lent = this.#lent.get(index);
    if (lent === undefined) return this.#isKnown(index);
    if (lent.transfer !== null) return false;
    this.#send(index, lent, transfer);
    return true;
  }

  #isKnown(index: number): boolean {
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
    const { id, line, request, announced, transfer, log, peer } = this.#options;
    const { index } = served;
    if (!this.#left.has(index)) {
      log("error", "a block was served that is not asked for", { peer: peer.worker, index });
      if (served.kind === "block") served.release();
      return;
    }
    if (served.kind !== "block") {
      line.send({ kind: "part", id, sent: false, body: encodeRefusal(index, served) });
      this.#left.delete(index);
      return;
    }
    if (this.#abort.signal.aborted) {
      served.release();
      return;
    }
    const { header } = served;
    const lent: Lent = { block: served, transfer: null };
    this.#lent.set(index, lent);
    this.#lentBytes += header.bytes;
    const isAsked = this.#asked.take({ kind: "frame", index, header }) === null;
    const isExact = header.bytes === request.items[index]!.bytesMax;
    const sent = isAsked && isExact && index < announced;
    line.send({ kind: "part", id, sent, body: this.#frame(index, header) });
    this.#left.delete(index);
    if (sent) this.#send(index, lent, transfer + index);
  }

  /** Throws where the header breaks the rules of the wire; then the block is let go of. */
  #frame(index: number, header: FrameHeader): Uint8Array {
    try {
      return encodeFrame(index, header);
    } catch (thrown) {
      this.#release(index);
      throw thrown;
    }
  }

  #send(index: number, lent: Lent, transfer: number): void {
    lent.transfer = transfer;
    const { offset, header } = lent.block;
    this.#lanes!.send(transfer, offset, header.bytes)
      .then((sent) => sent.ok)
      .catch((thrown) => this.#unsent(thrown))
      .then((ok) => (ok ? this.#release(index) : this.#lose(index)));
  }

  #unsent(thrown: unknown): false {
    const { log, onWrong } = this.#options;
    if (thrown instanceof NativeError && thrown.status === "exists") {
      onWrong("it used the number of a transfer that is under way");
    } else log("error", "a block could not be sent", { why: messageOf(thrown) });
    return false;
  }

  /** Its header was said, but it will not come. */
  #lose(index: number): void {
    const { line, id } = this.#options;
    line.send({ kind: "lost", id, index });
    this.#release(index);
  }

  #release(index: number): void {
    const lent = this.#lent.get(index);
    if (lent === undefined) return;
    this.#lent.delete(index);
    this.#lentBytes -= lent.block.header.bytes;
    lent.block.release();
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
