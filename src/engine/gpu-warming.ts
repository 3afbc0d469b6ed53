import { type BlockResult, type Clock, DIGEST_BYTES, type NamespaceIndex } from "../core/index.ts";
import type { GpuSink, OfferedBlock } from "../store/index.ts";
import { type DigestItems, Outcome, type OutcomeItems } from "./protocol/index.ts";

/** Maximum ms that an offer waits for an engine that is busy with another offer. */
const QUEUE_MS = 10_000;
/** Timeout in ms for an engine's report on an offer. */
const ANSWER_MS = 10_000;
/** Default ms that an engine's request waits for an offer. */
const WAIT_MS = 30_000;
/**
 * An engine whose request ended without an offer is expected to send another one within this many
 * ms.
 */
const BACK_MS = 2_000;

const deferred = (text: string): BlockResult =>
  Object.freeze({ outcome: "deferred", reason: `gpu_sink: ${text}` });
const DONE: BlockResult = Object.freeze({ outcome: "done" });
const MISSING: BlockResult = Object.freeze({ outcome: "missing" });
const NO_ENGINE = deferred("in RAM; no engine here loads blocks to its GPU without a request");
const BUSY = deferred("in RAM; the engine is busy with other blocks");
const LATE = deferred("in RAM; the engine did not answer the offer in time");
const GONE = deferred("in RAM; the engine disconnected");
const NO_ROOM = deferred("in RAM; the engine has no room");
const NOT_TAKEN = deferred("in RAM; the engine did not load it");
const ABORTED = deferred("in RAM; the offer was cancelled");

/** Blocks of one namespace and layer that the agent suggests loading to an engine's GPU. */
interface Offer {
  readonly id: number;
  readonly namespace: NamespaceIndex;
  readonly blocks: readonly OfferedBlock[];
  readonly settle: (results: readonly BlockResult[]) => void;
  timer: Disposable;
}

export interface GpuWarmingOptions {
  readonly clock: Clock;
  /** Maximum blocks in an offer to this engine. */
  readonly itemsMax: number;
}

/**
 * Sends an offer to a waiting engine. Offer number 0, without blocks, means that none was
 * available.
 */
export type SendOffer = (offer: number, blocks: DigestItems) => void;

/**
 * Offers blocks that were requested for a GPU to engines that load blocks without a pending request
 * of their own.
 */
export class GpuWarming implements GpuSink {
  readonly #options: GpuWarmingOptions;
  readonly #engines = new Set<GpuWarmingEngine>();
  /** Offers not sent to an engine yet. */
  readonly #queue: Offer[] = [];
  #lastId = 0;

  constructor(options: GpuWarmingOptions) {
    this.#options = options;
  }

  open(namespace: NamespaceIndex): GpuWarmingEngine {
    const { clock } = this.#options;
    return new GpuWarmingEngine(namespace, clock, {
      comes: (engine) => this.#engines.add(engine),
      leaves: (engine) => this.#left(engine),
      isFree: (engine) => this.#serve(engine),
    });
  }

  async offer(
    blocks: readonly OfferedBlock[],
    signal: AbortSignal,
  ): Promise<readonly BlockResult[]> {
    const results = new Array<BlockResult>(blocks.length).fill(NO_ENGINE);
    await Promise.all(
      this.#parts(blocks).map(async (places) => {
        const part = places.map((at) => blocks[at]);
        const came = await this.#offerPart(part, signal);
        for (const [k, at] of places.entries()) results[at] = came[k];
      }),
    );
    return results;
  }

  /**
   * Splits blocks into groups of one namespace and layer, each small enough for one reply. Returns
   * the blocks' positions.
   */
  #parts(blocks: readonly OfferedBlock[]): number[][] {
    const parts: number[][] = [];
    const open = new Map<string, number[]>();
    for (const [at, { namespace, layer }] of blocks.entries()) {
      const key = `${namespace} ${layer}`;
      let part = open.get(key);
      if (part === undefined || part.length === this.#options.itemsMax) {
        part = [];
        open.set(key, part);
        parts.push(part);
      }
      part.push(at);
    }
    return parts;
  }

  #offerPart(
    blocks: readonly OfferedBlock[],
    signal: AbortSignal,
  ): Promise<readonly BlockResult[]> {
    const { namespace } = blocks[0];
    const all = (result: BlockResult) => blocks.map(() => result);
    if (signal.aborted) return Promise.resolve(all(ABORTED));
    if (!this.#isServed(namespace)) return Promise.resolve(all(NO_ENGINE));
    return new Promise((resolve) => {
      const abort = () => this.#cancel(offer, ABORTED);
      const timer = this.#options.clock.after(QUEUE_MS, () => this.#cancel(offer, BUSY));
      const settle = (results: readonly BlockResult[]) => {
        signal.removeEventListener("abort", abort);
        resolve(results);
      };
      const offer: Offer = { id: this.#nextId(), namespace, blocks, settle, timer };
      signal.addEventListener("abort", abort, { once: true });
      this.#queue.push(offer);
      for (const engine of this.#engines) if (engine.waits) this.#serve(engine);
    });
  }

  #nextId(): number {
    this.#lastId = (this.#lastId + 1) >>> 0 || 1;
    return this.#lastId;
  }

  #isServed(namespace: NamespaceIndex): boolean {
    for (const engine of this.#engines) {
      if (engine.namespace === namespace && engine.isThere) return true;
    }
    return false;
  }

  /** Sends the next queued offer to a waiting engine. */
  #serve(engine: GpuWarmingEngine): void {
    const at = this.#queue.findIndex(({ namespace }) => namespace === engine.namespace);
    if (at < 0) return;
    const offer = this.#queue.splice(at, 1)[0];
    offer.timer[Symbol.dispose]();
    offer.timer = this.#options.clock.after(ANSWER_MS, () => this.#cancel(offer, LATE));
    engine.take(offer);
  }

  #cancel(offer: Offer, result: BlockResult): void {
    const at = this.#queue.indexOf(offer);
    if (at >= 0) this.#queue.splice(at, 1);
    for (const engine of this.#engines) engine.forget(offer);
    offer.timer[Symbol.dispose]();
    offer.settle(offer.blocks.map(() => result));
  }

  #left(engine: GpuWarmingEngine): void {
    this.#engines.delete(engine);
    if (this.#isServed(engine.namespace)) return;
    const stranded = this.#queue.filter(({ namespace }) => namespace === engine.namespace);
    for (const offer of stranded) this.#cancel(offer, GONE);
  }

  /** Ends all offers and waiting requests, because the agent is stopping. */
  stop(): void {
    for (const offer of [...this.#queue]) this.#cancel(offer, ABORTED);
    for (const engine of [...this.#engines]) engine.close();
  }
}

interface OfferQueue {
  comes(engine: GpuWarmingEngine): void;
  leaves(engine: GpuWarmingEngine): void;
  isFree(engine: GpuWarmingEngine): void;
}

/**
 * A connection that loads offered blocks to its GPU. It waits for an offer, or processes one, or is
 * expected to wait again because its last wait ended without an offer.
 */
export class GpuWarmingEngine {
  readonly namespace: NamespaceIndex;
  readonly #clock: Clock;
  readonly #offers: OfferQueue;
  #send: SendOffer | null = null;
  #timer: Disposable | null = null;
  #current: Offer | null = null;
  #backUntilMs = 0;
  #closed = false;

  constructor(namespace: NamespaceIndex, clock: Clock, offers: OfferQueue) {
    this.namespace = namespace;
    this.#clock = clock;
    this.#offers = offers;
  }

  get waits(): boolean {
    return this.#send !== null;
  }

  /** True if the engine waits for an offer, processes one, or is expected to wait again soon. */
  get isThere(): boolean {
    if (this.#send !== null || this.#current !== null) return true;
    return this.#clock.monotonicMs() < this.#backUntilMs;
  }

  /**
   * Records the outcomes of the previous offer and waits for the next one. Calls `send` exactly
   * once, at the latest at the deadline. Must not be called while the engine already waits.
   */
  wait(offer: number, outcomes: OutcomeItems, deadlineMs: number, send: SendOffer): void {
    this.#answered(offer, outcomes);
    this.#send = send;
    const ms = deadlineMs === 0 ? WAIT_MS : deadlineMs;
    this.#timer = this.#clock.after(ms, () => this.#sendNone());
    this.#offers.comes(this);
    this.#offers.isFree(this);
  }

  #answered(offer: number, { count, outcome }: OutcomeItems): void {
    const current = this.#current;
    this.#current = null;
    if (current === null) return;
    current.timer[Symbol.dispose]();
    const isMeant = current.id === offer;
    const resultOf = (i: number) => (isMeant && i < count ? resultOfOutcome(outcome[i]) : LATE);
    current.settle(current.blocks.map((_, i) => resultOf(i)));
  }

  take(offer: Offer): void {
    const { blocks } = offer;
    const digests = new Uint8Array(blocks.length * DIGEST_BYTES);
    for (const [i, { digest }] of blocks.entries()) digests.set(digest, i * DIGEST_BYTES);
    this.#current = offer;
    this.#reply(offer.id, { count: blocks.length, layer: blocks[0].layer, digests });
  }

  /** Forgets this offer; a report on it that arrives later is ignored. */
  forget(offer: Offer): void {
    if (this.#current !== offer) return;
    this.#current = null;
    this.#backUntilMs = this.#clock.monotonicMs() + BACK_MS;
  }

  #sendNone(): void {
    this.#backUntilMs = this.#clock.monotonicMs() + BACK_MS;
    this.#reply(0, { count: 0, layer: 0, digests: new Uint8Array(0) });
  }

  #reply(offer: number, blocks: DigestItems): void {
    const send = this.#send!;
    this.#timer?.[Symbol.dispose]();
    this.#send = null;
    this.#timer = null;
    send(offer, blocks);
  }

  /**
   * Ends the engine: a waiting request gets a reply without an offer. Called when the connection
   * has ended or the agent is stopping.
   */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#send !== null) this.#sendNone();
    this.#backUntilMs = 0;
    const current = this.#current;
    this.#current = null;
    if (current !== null) {
      current.timer[Symbol.dispose]();
      current.settle(current.blocks.map(() => GONE));
    }
    this.#offers.leaves(this);
  }
}

function resultOfOutcome(outcome: number): BlockResult {
  if (outcome === Outcome.ok || outcome === Outcome.present) return DONE;
  if (outcome === Outcome.miss) return MISSING;
  return outcome === Outcome.full ? NO_ROOM : NOT_TAKEN;
}
