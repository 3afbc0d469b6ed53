import { assert, type NamespaceIndex, unreachable } from "../../core/index.ts";
import type { Arrival, SlotRefusal } from "../../store/index.ts";
import type { ItemRefusal } from "../messages.ts";
import type { ConnectionFault, ItemCame } from "../transport.ts";
import { Attempt, type BlockFetch, shareArrival } from "./block-fetch.ts";
import { PULL_PRIORITIES, type PullOutcome, type PullPriority } from "./fetch-options.ts";
import { FetchRequest, pulledBlockOf } from "./fetch-request.ts";
import type { FetchContext } from "./fetcher.ts";
import type { Peer } from "./peer.ts";
import type { PeerPath } from "./peer-path.ts";

/**
 * Number of second attempts permitted per request. Limits the additional load if all peers become
 * slow.
 */
const EARNED = 0.1;
const KEPT_MAX = 16;

/** Limits how often a block is also requested from a second peer because the first is slow. */
class HedgeTokens {
  #tokens = KEPT_MAX;

  earn(): void {
    this.#tokens = Math.min(this.#tokens + EARNED, KEPT_MAX);
  }

  take(): boolean {
    if (this.#tokens < 1) return false;
    this.#tokens--;
    return true;
  }
}

/**
 * Maximum concurrent requests to one peer. While `BACKGROUND_REQUESTS_MAX` or more are running,
 * only engines' requests are started.
 */
const REQUESTS_MAX = 16;
const BACKGROUND_REQUESTS_MAX = 8;
/** Maximum payload bytes of one request. Further blocks go into another request. */
const REQUEST_BYTES_MAX = 64 << 20;

interface Batch {
  readonly peer: Peer;
  readonly namespace: NamespaceIndex;
  readonly priority: PullPriority;
  readonly attempts: Attempt[];
}

/**
 * Groups attempts to fetch from the same peer into requests. Attempts that are admitted in one turn
 * of the event loop share a request, as do those that wait because the peer has the maximum number
 * of requests.
 */
class RequestQueue {
  readonly #itemsMax: () => number;
  readonly #send: (attempts: Attempt[]) => Promise<void>;
  readonly #batches = new Map<string, Batch>();
  /**
   * A number for each `Peer` object. A peer that left and returned has the same name, but another
   * object.
   */
  readonly #numbers = new WeakMap<Peer, number>();
  #peers = 0;
  readonly #underWay = new Map<Peer, number>();
  #planned = false;

  /** `send`: sends a request. It must resolve when the request has ended, and never reject. */
  constructor(itemsMax: () => number, send: (attempts: Attempt[]) => Promise<void>) {
    this.#itemsMax = itemsMax;
    this.#send = send;
  }

  add(attempt: Attempt): void {
    const { namespace, priority } = attempt.fetch;
    const rank = PULL_PRIORITIES.indexOf(priority);
    const name = `${rank} ${namespace} ${this.#numberOf(attempt.peer)}`;
    const batch = this.#batches.get(name);
    if (batch === undefined)
      this.#batches.set(name, { peer: attempt.peer, namespace, priority, attempts: [attempt] });
    else batch.attempts.push(attempt);
    this.#plan();
  }

  /** Moves a waiting attempt forward because its priority has risen. */
  raisePriority(attempt: Attempt): void {
    for (const { attempts } of this.#batches.values()) {
      const at = attempts.indexOf(attempt);
      if (at < 0) continue;
      attempts.splice(at, 1);
      this.add(attempt);
      return;
    }
  }

  #numberOf(peer: Peer): number {
    const known = this.#numbers.get(peer);
    if (known !== undefined) return known;
    this.#numbers.set(peer, ++this.#peers);
    return this.#peers;
  }

  #plan(): void {
    if (this.#planned) return;
    this.#planned = true;
    queueMicrotask(() => {
      this.#planned = false;
      this.#flush();
    });
  }

  /**
   * Sends waiting requests as far as the limits permit: the most urgent first, those with equal
   * priority in order of arrival.
   */
  #flush(): void {
    const batches = [...this.#batches].sort(([a], [b]) => a.charCodeAt(0) - b.charCodeAt(0));
    for (const [name, batch] of batches) {
      while (batch.attempts.length > 0 && this.#mayBegin(batch)) this.#begin(batch);
      if (batch.attempts.length === 0) this.#batches.delete(name);
    }
  }

  #mayBegin({ peer, priority }: Batch): boolean {
    const max = priority === "acquire" ? REQUESTS_MAX : BACKGROUND_REQUESTS_MAX;
    return (this.#underWay.get(peer) ?? 0) < max;
  }

  #begin(batch: Batch): void {
    const attempts: Attempt[] = [];
    let bytes = 0;
    while (batch.attempts.length > 0 && attempts.length < this.#itemsMax()) {
      const attempt = batch.attempts[0];
      if (attempts.length > 0 && bytes + attempt.bytes > REQUEST_BYTES_MAX) break;
      batch.attempts.shift();
      if (attempt.over) continue;
      bytes += attempt.bytes;
      attempts.push(attempt);
    }
    if (attempts.length === 0) return;
    this.#underWay.set(batch.peer, (this.#underWay.get(batch.peer) ?? 0) + 1);
    void this.#send(attempts).then(() => this.#ended(batch.peer));
  }

  #ended(peer: Peer): void {
    const left = this.#underWay.get(peer)! - 1;
    if (left === 0) this.#underWay.delete(peer);
    else this.#underWay.set(peer, left);
    if (this.#batches.size > 0) this.#plan();
  }
}

/** Maximum number of attempts to fetch a block, from all peers. */
const ASKS_MAX = 12;
/**
 * If a peer has not reported a block's size within this many milliseconds, another peer is asked as
 * well.
 */
const MEASURE_SLOW_MS = 250;

interface Came {
  readonly arrival: Arrival;
  readonly bytes: number;
}

/**
 * Runs fetches: tries one peer after another until the block arrives or no candidate is left. For
 * each attempt, a request calls exactly one of the result methods (`came`, `declined`, `unplaced`,
 * `failed`), except that `came` may follow `failed`.
 */
export class FetchScheduler {
  readonly #context: FetchContext;
  readonly #onEnd: (fetch: BlockFetch) => void;
  readonly #requestQueue: RequestQueue;
  readonly #tokens = new HedgeTokens();
  readonly #requests = new Set<Promise<void>>();

  /**
   * `onEnd`: called when a fetch has ended. A caller that wants the block afterwards needs a new
   * fetch.
   */
  constructor(context: FetchContext, onEnd: (fetch: BlockFetch) => void) {
    this.#context = context;
    this.#onEnd = onEnd;
    this.#requestQueue = new RequestQueue(
      () => context.limits.itemsMax,
      (attempts) => this.#send(attempts),
    );
  }

  /** Resolves when no transport writes to a slot any more. */
  async settled(): Promise<void> {
    while (this.#requests.size > 0) await Promise.all(this.#requests);
  }

  /** Starts the next attempt of a fetch, or ends the fetch if there is nothing left to try. */
  advance(fetch: BlockFetch): void {
    const { candidates } = this.#context;
    if (fetch.settled !== null || fetch.searching) return;
    if (!fetch.awaited) {
      if (fetch.attempts.size > 0) return;
      this.settle(fetch, fetch.mirror ? "late" : "aborted", "no caller is waiting");
      return;
    }
    if (fetch.asked >= ASKS_MAX) {
      if (fetch.attempts.size === 0) this.settle(fetch, fetch.reason, "attempt limit reached");
      return;
    }
    const peer = candidates.pick(fetch);
    if (peer !== null) {
      this.#startAttempt(fetch, peer, false);
      return;
    }
    if (fetch.attempts.size > 0) return;
    if (fetch.search !== "over") {
      void this.#search(fetch);
      return;
    }
    const waitMs = candidates.waitMs(fetch);
    if (waitMs !== null && this.#leftMs(fetch) > waitMs) {
      this.#wait(fetch, waitMs);
      return;
    }
    this.settle(fetch, fetch.reason, this.#reasonFor(fetch));
  }

  /**
   * Ends a fetch for which no caller waits any more. If the deadline passed (`late`) while the
   * block was being received and `mirrorPulls` is set, the block is still accepted.
   */
  unwanted(fetch: BlockFetch, late: boolean): void {
    if (fetch.settled !== null) return;
    const coming = [...fetch.attempts].some((attempt) => attempt.landing !== null);
    if (late && coming && this.#context.limits.mirrorPulls) {
      fetch.mirror = true;
      fetch.trace.step("deadline passed; still accepting the block");
      return;
    }
    this.settle(fetch, late ? "late" : "aborted", "");
  }

  /** Passes the fetch's priority, which has risen, on to all its waiting attempts. */
  raisePriority(fetch: BlockFetch): void {
    for (const attempt of fetch.attempts) {
      attempt.ticket?.raisePriority(fetch.priority);
      if (attempt.grant !== null && attempt.request === null)
        this.#requestQueue.raisePriority(attempt);
    }
  }

  settle(fetch: BlockFetch, outcome: PullOutcome, why: string, came?: Came): void {
    assert(fetch.settled === null, "a fetch ends once");
    fetch.settled = outcome;
    fetch.timer?.[Symbol.dispose]();
    fetch.timer = null;
    fetch.trace.end(outcome, came?.bytes ?? 0, why);
    this.#context.counters.outcomes[outcome]++;
    this.#onEnd(fetch);
    const waiters = fetch.takeWaiters();
    const kind = outcome === "full" || outcome === "late" ? outcome : "miss";
    const arrivals = came === undefined ? null : shareArrival(came.arrival, waiters.length);
    for (const [index, [call, place]] of waiters.entries())
      call.deliver(place, arrivals === null ? { kind } : { kind: "ok", arrival: arrivals[index] });
    for (const attempt of [...fetch.attempts]) {
      if (attempt.request === null) attempt.end();
      else attempt.request.reconsider();
    }
  }

  /**
   * Handles a block whose payload is in its slot: verifies and commits it. May follow `failed`, if
   * the block arrives after its attempt was abandoned.
   */
  came(attempt: Attempt, came: ItemCame, path: PeerPath): void {
    const { fetch, peer } = attempt;
    const { counters } = this.#context;
    const landing = attempt.landing;
    assert(landing !== null, "a received block has a slot");
    attempt.landing = null;
    if (fetch.settled !== null) {
      landing.abandon();
      return;
    }
    const { header } = came;
    const where = { peer: peer.worker, transport: path.transport.name, bytes: header.bytes };
    if (attempt.generation !== 0n && header.generation !== attempt.generation) {
      landing.abandon();
      this.#sentCorrupt(attempt, "generation mismatch");
      return;
    }
    const committed = landing.commit(pulledBlockOf(header), came.checksum);
    switch (committed.kind) {
      case "ok":
        counters.byTransport[path.transport.name].blocks++;
        counters.byTransport[path.transport.name].bytes += header.bytes;
        if (attempt.hedge) counters.hedgesWon++;
        fetch.trace.step(attempt.hedge ? "received from the second peer first" : "received", where);
        this.settle(fetch, "ok", "", { arrival: committed.arrival, bytes: header.bytes });
        return;
      case "corrupt":
        this.#sentCorrupt(attempt, committed.why);
        return;
      case "unwanted":
        this.settle(fetch, "aborted", committed.why);
        return;
      default:
        unreachable(committed, "committed");
    }
  }

  declined(attempt: Attempt, how: ItemRefusal): void {
    const { fetch, peer } = attempt;
    const { parts } = this.#context;
    const where = { peer: peer.worker };
    fetch.trace.step(refusalMessage(how), where);
    switch (how.kind) {
      case "absent":
        fetch.reason = "absent";
        fetch.exclude(peer.worker);
        parts.blockHolders.wasWrong(peer.worker, fetch.namespaceKey, fetch.keyBytes);
        break;
      case "busy": {
        fetch.reason = "busy";
        fetch.busy(peer.worker, how.retryAfterMs, parts.clock.monotonicMs());
        break;
      }
      case "tooLong":
        fetch.reason = "failed";
        if (how.bytes <= attempt.bytes || !fetch.measure(how)) fetch.exclude(peer.worker);
        break;
      case "refused":
        fetch.reason = "failed";
        fetch.exclude(peer.worker);
        break;
      default:
        unreachable(how, "refusal");
    }
    this.advance(fetch);
  }

  /**
   * Handles an attempt that was not sent to the peer, because no slot could be reserved or the
   * block is not needed.
   */
  unplaced(attempt: Attempt, why: SlotRefusal): void {
    const { fetch } = attempt;
    if (fetch.settled !== null) return;
    if (why === "full") {
      this.settle(fetch, "full", "no room in RAM");
      return;
    }
    if (why === "present" || why === "removed") {
      const reason =
        why === "present" ? "the block is already here" : "the block was removed recently";
      this.settle(fetch, "aborted", reason);
      return;
    }
    this.#disbelieve(attempt, "block size exceeds the arena");
  }

  /**
   * Handles an impossible size. Excludes the peer if a peer reported the size; otherwise ends the
   * fetch.
   */
  #disbelieve({ fetch, peer }: Attempt, why: string): void {
    fetch.reason = "failed";
    if (!fetch.forget()) {
      this.settle(fetch, "failed", why);
      return;
    }
    fetch.trace.step(why, { peer: peer.worker });
    fetch.exclude(peer.worker);
    this.advance(fetch);
  }

  /**
   * Handles an attempt to which the peer did not reply. The request has already recorded the peer's
   * fault.
   */
  failed(attempt: Attempt, fault: ConnectionFault): void {
    const { fetch, peer } = attempt;
    if (fetch.settled !== null) return;
    if (fault.kind !== "aborted" && fault.kind !== "closed") fetch.reason = "failed";
    fetch.trace.step(`${fault.kind}: ${fault.why}`, { peer: peer.worker });
    this.advance(fetch);
  }

  /**
   * Takes the permission to ask a second peer because a request is slow. Returns false if there is
   * none.
   */
  mayHedge(): boolean {
    return this.#tokens.take();
  }

  /** Handles a slow attempt: starts a second one at another peer, if possible. */
  slow(attempt: Attempt): void {
    const { fetch } = attempt;
    attempt.hedged = true;
    if (!fetch.wanted || fetch.attempts.size > 1) return;
    const { candidates, discovery } = this.#context;
    let peer = candidates.pick(fetch);
    // The router may have named only one peer. The peers' summaries can add others without waiting.
    while (peer === null && discovery.isReady(fetch)) {
      void discovery.step(fetch);
      peer = candidates.pick(fetch);
    }
    if (peer === null || fetch.tried(peer.worker).attempts > 0) return;
    this.#context.counters.hedges++;
    fetch.trace.step("slow, asking a second peer", { peer: peer.worker });
    this.#startAttempt(fetch, peer, true);
  }

  #sentCorrupt(attempt: Attempt, why: string): void {
    const { fetch, peer } = attempt;
    const { counters } = this.#context;
    this.#context.denylist.add(peer.worker, fetch.key);
    fetch.exclude(peer.worker);
    fetch.reason = "corrupt";
    fetch.trace.step(`corrupt: ${why}`, { peer: peer.worker });
    counters.corrupt++;
    peer.sentCorrupt(fetch.key, why);
    this.advance(fetch);
  }

  #startAttempt(fetch: BlockFetch, peer: Peer, hedge: boolean): void {
    if (!peer.breaker.enter()) {
      this.advance(fetch);
      return;
    }
    const { blocks } = this.#context.parts;
    fetch.askedOf(peer.worker);
    const attempt = new Attempt(fetch, peer, hedge);
    fetch.attempts.add(attempt);
    const bytes = fetch.bytes || blocks.usualBytes(fetch.namespace, fetch.layer);
    if (bytes > 0) this.#enter(attempt, bytes);
    else void this.#measure(attempt);
  }

  /** Asks the peer for the block's size, which is unknown, before requesting the block. */
  async #measure(attempt: Attempt): Promise<void> {
    const { fetch, peer } = attempt;
    const { clock } = this.#context.parts;
    using _slow = clock.after(MEASURE_SLOW_MS, () => this.slow(attempt));
    const has = await this.#context.queries.has(peer, fetch, this.#leftMs(fetch));
    const others = [...fetch.attempts].some((other) => other !== attempt && other.bytes > 0);
    if (attempt.over || others || fetch.settled !== null) return attempt.end();
    if (has !== null && has.tiers !== 0 && has.bytes > 0) {
      fetch.measure(has);
      attempt.generation = has.generation;
      return this.#enter(attempt, has.bytes);
    }
    attempt.end();
    if (has !== null) return this.declined(attempt, { kind: "absent" });
    this.failed(attempt, { kind: "broken", why: "the peer did not report the block's size" });
  }

  #enter(attempt: Attempt, bytes: number): void {
    const { fetch, peer } = attempt;
    const { admission } = this.#context;
    attempt.load(bytes);
    const refused = () => {
      attempt.end();
      if (fetch.settled !== null || fetch.attempts.size > 0) return;
      if (bytes > admission.longest) this.#disbelieve(attempt, "block size exceeds a limit");
      else this.settle(fetch, "full", "admission queue is full");
    };
    const { priority, namespace } = fetch;
    const ticket = admission.enter({
      priority,
      namespace,
      bytes,
      peer: peer.worker,
      refused,
      admitted: (grant) => {
        attempt.grant = grant;
        this.#requestQueue.add(attempt);
      },
    });
    if (ticket === null) refused();
    else attempt.ticket = ticket;
  }

  async #send(attempts: Attempt[]): Promise<void> {
    this.#tokens.earn();
    const run = new FetchRequest(this.#context, this, attempts).run();
    this.#requests.add(run);
    await run.finally(() => this.#requests.delete(run));
  }

  async #search(fetch: BlockFetch): Promise<void> {
    const { discovery } = this.#context;
    if (discovery.isReady(fetch)) {
      void discovery.step(fetch);
      return this.advance(fetch);
    }
    fetch.searching = true;
    await discovery.step(fetch);
    fetch.searching = false;
    this.advance(fetch);
  }

  #wait(fetch: BlockFetch, ms: number): void {
    if (fetch.timer !== null) return;
    fetch.trace.step(`waiting ${Math.round(ms)} ms for a busy peer`);
    fetch.timer = this.#context.parts.clock.after(ms, () => {
      fetch.timer = null;
      this.advance(fetch);
    });
  }

  #leftMs({ deadlineMs }: BlockFetch): number {
    return Math.max(deadlineMs - this.#context.parts.clock.monotonicMs(), 0);
  }

  #reasonFor({ candidates }: BlockFetch): string {
    return candidates.length === 0 ? "no peer is known to have the block" : "no candidate is left";
  }
}

function refusalMessage(how: ItemRefusal): string {
  switch (how.kind) {
    case "absent":
      return "absent";
    case "busy":
      return `busy for ${how.retryAfterMs} ms`;
    case "tooLong":
      return `block has ${how.bytes} bytes, more than requested`;
    case "refused":
      return `refused: ${how.why}`;
    default:
      return unreachable(how, "refusal");
  }
}
