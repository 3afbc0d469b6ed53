import type { Clock } from "../core/index.ts";
import type { EventLog, HearthEvent } from "../observability/activity/index.ts";
import type { Health, Logger } from "../observability/index.ts";
import type { PeerRecord, PeerStatus, PullEvent, TrustNews } from "../peers/index.ts";

export interface PeerNewsParts {
  readonly clock: Clock;
  readonly logger: Logger;
  readonly health: Health;
  readonly events: EventLog;
}

const WATCH_MS = 1_000;
/** How long a peer's wrong answer is told as something that is the matter. */
const CORRUPT_MS = 600_000;

/** What happens to peers and certificates, as events, log lines and health codes. */
export class PeerNews implements Disposable {
  readonly #parts: PeerNewsParts;
  #watch: Disposable | null = null;
  #corruptAtMs: number | null = null;

  constructor(parts: PeerNewsParts) {
    this.#parts = parts;
  }

  /** `peers`: as they are then. */
  watch(peers: () => readonly PeerStatus[]): void {
    this.#watch = this.#parts.clock.every(WATCH_MS, () => this.#look(peers()));
  }

  member(kind: "came" | "changed" | "restarted" | "went", { worker: peer }: PeerRecord): void {
    if (kind === "came" || kind === "went") this.#tell({ kind: `peer_${kind}`, peer });
  }

  pull(event: PullEvent): void {
    if (event.kind === "peer_corrupt") {
      this.#corruptAtMs = this.#parts.clock.monotonicMs();
      this.#parts.health.raise("PEERS_CORRUPT", `${event.worker}: ${event.why}`);
    }
    this.#tell(eventOf(event));
  }

  trust(news: TrustNews): void {
    const { health, logger } = this.#parts;
    switch (news.kind) {
      case "loaded":
        health.clear("PEERS_FILES");
        logger.info("certificates for peers are loaded", { ends: dateOf(news.notAfterMs) });
        return;
      case "refused":
        health.raise("PEERS_FILES", news.why);
        return;
      case "warning":
        logger.warn(news.text, {});
        return;
      case "expiry":
        this.#expiry(news);
        return;
      default:
        news satisfies never;
    }
  }

  [Symbol.dispose](): void {
    this.#watch?.[Symbol.dispose]();
  }

  #expiry({ state, notAfterMs }: Extract<TrustNews, { kind: "expiry" }>): void {
    const { health } = this.#parts;
    if (state === "soon") health.raise("PEERS_CERT", `it ends ${dateOf(notAfterMs)}`);
    else health.clear("PEERS_CERT");
    if (state === "late") health.raise("PEERS_CERT_ENDED", `it ended ${dateOf(notAfterMs)}`);
    else health.clear("PEERS_CERT_ENDED");
  }

  #look(peers: readonly PeerStatus[]): void {
    const { health, clock } = this.#parts;
    const down = peers.filter(({ breaker }) => breaker === "open");
    if (peers.length > 0 && down.length === peers.length) {
      const { worker, lastFault } = down[0]!;
      health.raise("PEERS_DOWN", `all ${down.length}; of them ${worker}: ${lastFault ?? "-"}`);
    } else if (peers.length === 0 || peers.some(({ breaker }) => breaker === "closed")) {
      // One that is just being tried is not reached yet.
      health.clear("PEERS_DOWN");
    }
    const sinceMs = clock.monotonicMs() - (this.#corruptAtMs ?? Number.NEGATIVE_INFINITY);
    if (sinceMs > CORRUPT_MS) health.clear("PEERS_CORRUPT");
  }

  #tell(event: HearthEvent): void {
    this.#parts.events.emit(event);
    const { kind, ...fields } = event;
    const isBad = kind === "peer_down" || kind === "peer_corrupt" || kind === "peer_transport_down";
    this.#parts.logger.log(isBad ? "warn" : "info", kind.replaceAll("_", " "), { ...fields });
  }
}

function eventOf(event: PullEvent): HearthEvent {
  const peer = event.worker;
  switch (event.kind) {
    case "breaker_opened":
      return { kind: "peer_down", peer, why: event.why, cooldown_ms: Math.round(event.cooldownMs) };
    case "breaker_closed":
      return { kind: "peer_up", peer };
    case "transport_down": {
      const { transport, why, cooldownMs } = event;
      const cooldown_ms = Math.round(cooldownMs);
      return { kind: "peer_transport_down", peer, transport, why, cooldown_ms };
    }
    case "transport_up":
      return { kind: "peer_transport_up", peer, transport: event.transport };
    case "peer_slow":
      return { kind: "peer_slow", peer, after_ms: Math.round(event.afterMs) };
    case "peer_corrupt":
      return { kind: "peer_corrupt", peer, key: event.key, why: event.why };
    case "peer_restarted":
      return { kind: "peer_restarted", peer };
    default:
      return event satisfies never;
  }
}

function dateOf(ms: number): string {
  return new Date(ms).toISOString();
}
