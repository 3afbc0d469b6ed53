import {
  type Clock,
  formatBytes,
  LAYER_ALL,
  type NamespaceIndex,
  type WorkerId,
} from "../../core/index.ts";
import type { WantedBlock } from "../messages.ts";
import type { BlockFetch } from "./block-fetch.ts";
import type { FetchContext } from "./fetcher.ts";
import type { Peer } from "./peer.ts";

const KEPT_MAX = 4_096;
const FOR_MS = 600_000;

/**
 * Prevents a block from being fetched again from a peer that sent corrupt data for it. Entries
 * expire after ten minutes.
 */
export class PeerDenylist {
  readonly #clock: Clock;
  /** Expiry in monotonic milliseconds by peer and block key, the earliest first. */
  readonly #untilMs = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(worker: WorkerId, key: string): void {
    const name = `${key} ${worker}`;
    this.#untilMs.delete(name);
    this.#untilMs.set(name, this.#clock.monotonicMs() + FOR_MS);
    for (const [oldest, untilMs] of this.#untilMs) {
      if (this.#untilMs.size <= KEPT_MAX && untilMs > this.#clock.monotonicMs()) break;
      this.#untilMs.delete(oldest);
    }
  }

  /** True if there are no entries. Lets callers avoid computing a key for a lookup. */
  get empty(): boolean {
    return this.#untilMs.size === 0;
  }

  has(worker: WorkerId, key: string): boolean {
    if (this.empty) return false;
    const untilMs = this.#untilMs.get(`${key} ${worker}`);
    return untilMs !== undefined && untilMs > this.#clock.monotonicMs();
  }
}

/**
 * While fetching is slower than recomputing, one fetch per this many milliseconds is permitted as a
 * probe, to notice if the network becomes faster.
 */
const PROBE_EVERY_MS = 1_000;

/** Number of payload bytes to fetch from each peer. */
type Shares = Map<Peer, number>;

function addShare(shares: Shares, peer: Peer, bytes: number): void {
  shares.set(peer, (shares.get(peer) ?? 0) + bytes);
}

/**
 * Estimates whether fetching blocks is faster than recomputing them. The time to fetch is one round
 * trip, plus the peer's outstanding and the requested bytes at its measured goodput; several peers
 * send in parallel. The time to recompute is the blocks' tokens at the engines' prefill rate. If a
 * value is unknown, fetching counts as faster.
 */
export class CostModel {
  readonly #context: FetchContext;
  /** Monotonic milliseconds at which the next probe is permitted. */
  #probeAtMs: number | null = null;

  constructor(context: FetchContext) {
    this.#context = context;
  }

  /**
   * Returns the estimated milliseconds until the peer has sent `bytes` more bytes. Null if unknown.
   */
  estimateMs(peer: Peer, bytes: number): number | null {
    return this.#takesMs(peer, bytes, peer.goodput);
  }

  #takesMs(peer: Peer, bytes: number, goodput: number | null): number | null {
    if (goodput === null) return null;
    return (peer.rttMs ?? 0) + ((peer.loadBytes + bytes) * 1_000) / goodput;
  }

  /** Returns the estimated milliseconds to recompute this many blocks. Null if unknown. */
  computeMs(namespace: NamespaceIndex, blocks: number): number | null {
    const rate = this.#context.limits.prefillTokensPerS;
    const tokens = this.#context.parts.tokensPerBlock(namespace);
    return rate === null || tokens === null ? null : (blocks * tokens * 1_000) / rate;
  }

  /** Returns why fetching is estimated to be slower than recomputing. Null if it may be faster. */
  whyNot(namespace: NamespaceIndex, blocks: number, shares: Shares): string | null {
    const computeMs = this.computeMs(namespace, blocks);
    if (computeMs === null) return null;
    let worst: { readonly peer: Peer; readonly bytes: number; readonly ms: number } | null = null;
    for (const [peer, bytes] of shares) {
      const ms = this.#takesMs(peer, bytes, peer.provenGoodput);
      if (ms !== null && ms > (worst?.ms ?? 0)) worst = { peer, bytes, ms };
    }
    if (worst === null || worst.ms <= computeMs) return null;
    const { peer, bytes } = worst;
    const speed = `${formatBytes(Math.round(peer.provenGoodput ?? 0))}/s`;
    return (
      `recomputing takes ${roundMs(computeMs)} ms, ` +
      `fetching ${formatBytes(bytes)} from ${peer.worker} at ${speed} takes ${roundMs(worst.ms)} ms`
    );
  }

  /** Returns whether a fetch is permitted as a probe now. Only fetches measure the network. */
  get mayProbe(): boolean {
    const nowMs = this.#context.parts.clock.monotonicMs();
    this.#probeAtMs ??= nowMs + PROBE_EVERY_MS;
    return nowMs >= this.#probeAtMs;
  }

  /**
   * Takes the permission for a probe. Returns false if there is none. After true, there is none for
   * `PROBE_EVERY_MS`.
   */
  takeProbe(): boolean {
    const may = this.mayProbe;
    if (may) this.#probeAtMs = this.#context.parts.clock.monotonicMs() + PROBE_EVERY_MS;
    return may;
  }
}

function roundMs(ms: number): number {
  return ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms);
}

const KEY_WORDS = 8;
const KEY_BYTES = 32;
/** Bytes to fetch as a probe, at least one block; the rest of the blocks is not fetched. */
const PROBE_BYTES = 1 << 20;

/** Estimates without network requests whether to fetch blocks. */
export class FetchForecast {
  readonly #context: FetchContext;

  constructor(context: FetchContext) {
    this.#context = context;
  }

  /** Implements `PeerTier.promising`. */
  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number {
    const namespaceKey = this.#context.parts.namespaces.keyOf(namespace);
    if (namespaceKey === null) return 0;
    const at = keys.byteOffset + from * KEY_WORDS * 4;
    const bytes = new Uint8Array(keys.buffer, at, count * KEY_BYTES);
    const usable = new Map<WorkerId, Peer | null>();
    const shares: Shares = new Map();
    const usual = this.#context.parts.blocks.usualBytes(namespace, LAYER_ALL);
    let run = 0;
    for (; run < count; run++) {
      const peer = this.#holder(namespaceKey, bytes, run * KEY_BYTES, usable);
      if (peer === null) break;
      addShare(shares, peer, usual);
    }
    if (run === 0 || this.#context.cost.whyNot(namespace, run, shares) === null) return run;
    const some = Math.min(Math.max(Math.floor(PROBE_BYTES / usual), 1), run);
    return this.#context.cost.mayProbe ? some : 0;
  }

  /**
   * Returns why these fetches are estimated to be slower than recomputing. Null if they may be
   * faster, or are permitted as a probe.
   */
  whyUnprofitable(namespace: NamespaceIndex, fetches: readonly BlockFetch[]): string | null {
    if (fetches.length === 0 || this.#context.cost.computeMs(namespace, 1) === null) return null;
    const shares: Shares = new Map();
    const usable = new Map<WorkerId, Peer | null>();
    for (const { candidates, namespaceKey, keyBytes, layer } of fetches) {
      const source = candidates.map((worker) => this.#usable(worker, usable)).find(Boolean);
      const peer = source ?? this.#holder(namespaceKey, keyBytes, 0, usable);
      if (peer === null) continue;
      addShare(shares, peer, this.#context.parts.blocks.usualBytes(namespace, layer));
    }
    const prefixes = new Set(fetches.map(({ digest }) => digest.toHex())).size;
    const why = this.#context.cost.whyNot(namespace, prefixes, shares);
    return why !== null && this.#context.cost.takeProbe() ? null : why;
  }

  /** Returns why these blocks would not be fetched for an engine now. Null if they would be. */
  whyNot(
    namespace: NamespaceIndex,
    blocks: readonly WantedBlock[],
    keys: Uint8Array,
  ): string | null {
    const namespaceKey = this.#context.parts.namespaces.keyOf(namespace);
    if (namespaceKey === null) return "the namespace is not known here";
    const all = this.#context.peers.all();
    if (all.length === 0) return "no peer is known";
    if (all.every((peer) => !peer.breaker.allows)) return "no peer is reachable";
    const shares: Shares = new Map();
    const usable = new Map<WorkerId, Peer | null>();
    for (const [index, { layer }] of blocks.entries()) {
      const peer = this.#holder(namespaceKey, keys, index * KEY_BYTES, usable);
      if (peer === null) {
        if (shares.size > 0) break;
        return "no reachable peer is known to have the block";
      }
      addShare(shares, peer, this.#context.parts.blocks.usualBytes(namespace, layer));
    }
    const prefixes = new Set(blocks.map(({ digest }) => digest.toHex())).size;
    return this.#context.cost.whyNot(namespace, prefixes, shares);
  }

  /** Returns the best peer from which to fetch a block. Its key is at byte offset `at`. */
  #holder(
    namespaceKey: Uint8Array,
    keys: Uint8Array,
    at: number,
    usable: Map<WorkerId, Peer | null>,
  ): Peer | null {
    for (const worker of this.#context.parts.blockHolders.holders(namespaceKey, keys, at)) {
      const peer = this.#usable(worker, usable);
      if (peer === null) continue;
      if (this.#context.denylist.empty) return peer;
      if (!this.#context.denylist.has(worker, keys.subarray(at, at + KEY_BYTES).toHex()))
        return peer;
    }
    return null;
  }

  #usable(worker: WorkerId, known: Map<WorkerId, Peer | null>): Peer | null {
    let peer = known.get(worker);
    if (peer === undefined) {
      const candidate = this.#context.peers.get(worker);
      peer = candidate?.mayBeAsked ? candidate : null;
      known.set(worker, peer);
    }
    return peer;
  }
}

/** Maximum number of attempts to fetch one block from one peer. */
const ASKS_MAX = 4;
/**
 * Another peer than the first candidate is chosen only if its estimated time is shorter by this
 * factor, and by this many milliseconds.
 */
const CLEARLY = 1.5;
const CLEARLY_MS = 1;
/**
 * Number of attempts added to a slow peer's count when candidates are compared, so that it comes
 * after peers with equal counts.
 */
const SUSPECT = 0.5;

/** Chooses the peer for the next attempt to fetch a block. */
export class Candidates {
  readonly #context: FetchContext;

  constructor(context: FetchContext) {
    this.#context = context;
  }

  get #nowMs(): number {
    return this.#context.parts.clock.monotonicMs();
  }

  /**
   * Returns the peer to ask now. Null if there is none. Prefers peers with the fewest attempts for
   * this block, then peers that were not slow recently, then earlier candidates, unless a later one
   * is clearly faster.
   */
  pick(fetch: BlockFetch): Peer | null {
    let [choice, fewest]: [Peer[], number] = [[], Number.POSITIVE_INFINITY];
    for (const worker of fetch.candidates) {
      const peer = this.#usable(fetch, worker);
      if (peer === null) continue;
      const attempts = fetch.tried(worker).attempts + (peer.suspect ? SUSPECT : 0);
      if (attempts < fewest) [choice, fewest] = [[], attempts];
      if (attempts === fewest) choice.push(peer);
    }
    return choice.length > 1 ? this.#soonest(choice, fetch.bytes) : (choice[0] ?? null);
  }

  /**
   * Returns the milliseconds until a busy candidate may be asked again. Null if no candidate is
   * busy.
   */
  waitMs(fetch: BlockFetch): number | null {
    const nowMs = this.#nowMs;
    const waits = fetch.candidates.flatMap((worker) => {
      const { busyUntilMs, done, attempts } = fetch.tried(worker);
      return !done && attempts < ASKS_MAX && busyUntilMs > nowMs ? busyUntilMs - nowMs : [];
    });
    return waits.length === 0 ? null : Math.min(...waits);
  }

  #soonest(peers: readonly Peer[], bytes: number): Peer {
    let least = Number.POSITIVE_INFINITY;
    for (const peer of peers) {
      least = Math.min(
        least,
        this.#context.cost.estimateMs(peer, bytes) ?? Number.POSITIVE_INFINITY,
      );
    }
    const soon = least * CLEARLY + CLEARLY_MS;
    return peers.find((peer) => (this.#context.cost.estimateMs(peer, bytes) ?? 0) <= soon)!;
  }

  #usable(fetch: BlockFetch, worker: WorkerId): Peer | null {
    const { done, attempts, busyUntilMs } = fetch.tried(worker);
    if (done || attempts >= ASKS_MAX || busyUntilMs > this.#nowMs) return null;
    for (const attempt of fetch.attempts) if (attempt.peer.worker === worker) return null;
    const peer = this.#context.peers.get(worker);
    if (!peer?.mayBeAsked) return null;
    return this.#context.denylist.has(worker, fetch.key) ? null : peer;
  }
}
