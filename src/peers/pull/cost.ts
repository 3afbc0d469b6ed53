import { formatBytes, type NamespaceIndex } from "../../core/index.ts";
import type { Peer } from "./peer.ts";
import type { Room } from "./room.ts";

/** While pulls do not pay, one is let through so often: a way that became better is noticed. */
const PROBE_EVERY_MS = 1_000;

/** What some blocks weigh, by the peer that would be asked for them. */
export interface Load {
  readonly peer: Peer;
  readonly bytes: number;
}

/**
 * Fetch or compute again? A pull takes a round trip and then what waits at the peer and the blocks
 * themselves at the peer's goodput; peers are asked at the same time. Computing takes the blocks'
 * tokens at the engines' rate of prefill. What is not known counts for the pull.
 */
export class Cost {
  readonly #room: Room;
  /** When the next may try although it does not seem to pay. */
  #probeAtMs: number | null = null;

  constructor(room: Room) {
    this.#room = room;
  }

  /** Milliseconds until this many bytes more have come from it; null: not known. */
  estimateMs(peer: Peer, bytes: number): number | null {
    return this.#takesMs(peer, bytes, peer.goodput);
  }

  #takesMs(peer: Peer, bytes: number, goodput: number | null): number | null {
    if (goodput === null) return null;
    return (peer.rttMs ?? 0) + ((peer.loadBytes + bytes) * 1_000) / goodput;
  }

  /** Milliseconds an engine needs for this many blocks; null: not known. */
  computeMs(namespace: NamespaceIndex, blocks: number): number | null {
    const rate = this.#room.limits.prefillTokensPerS;
    const tokens = this.#room.parts.tokensPerBlock(namespace);
    return rate === null || tokens === null ? null : (blocks * tokens * 1_000) / rate;
  }

  /** Why these are not pulled, in words; null: it may pay. */
  whyNot(namespace: NamespaceIndex, blocks: number, loads: Iterable<Load>): string | null {
    const computeMs = this.computeMs(namespace, blocks);
    if (computeMs === null) return null;
    let worst: { readonly load: Load; readonly ms: number } | null = null;
    for (const load of loads) {
      const ms = this.#takesMs(load.peer, load.bytes, load.peer.provenGoodput);
      if (ms !== null && ms > (worst?.ms ?? 0)) worst = { load, ms };
    }
    if (worst === null || worst.ms <= computeMs) return null;
    const { peer, bytes } = worst.load;
    const speed = `${formatBytes(Math.round(peer.provenGoodput ?? 0))}/s`;
    return (
      `computing takes ${roundMs(computeMs)} ms, ` +
      `${formatBytes(bytes)} from ${peer.worker} at ${speed} take ${roundMs(worst.ms)} ms`
    );
  }

  /** Whether it is time to pull some that do not seem to pay: nothing else measures the way. */
  get mayProbe(): boolean {
    const nowMs = this.#room.parts.clock.monotonicMs();
    this.#probeAtMs ??= nowMs + PROBE_EVERY_MS;
    return nowMs >= this.#probeAtMs;
  }

  /** As `mayProbe`; where it is true, nobody else may for a while. */
  takeProbe(): boolean {
    const may = this.mayProbe;
    if (may) this.#probeAtMs = this.#room.parts.clock.monotonicMs() + PROBE_EVERY_MS;
    return may;
  }
}

function roundMs(ms: number): number {
  return ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms);
}
