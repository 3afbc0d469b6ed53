import type { WorkerId } from "../../core/index.ts";
import { type CommandQueue, isAllMissing, isSomeDone, type OrderOutcome } from "./command-queue.ts";
import type { Moment, Policy, RoutedPrompt } from "./policies.ts";
import type { PromptChain } from "./prompt-chain.ts";
import type { Noted, Session, SessionTable } from "./session-table.ts";
import type { PolicySettings } from "./settings.ts";

/** Pattern of the session ids that can be used in a lease id. */
const PLAIN = /^[\x21-\x7e]{1,96}$/;

/** Blocks of a prompt from index `from` to the end. */
interface Part {
  readonly chain: PromptChain;
  readonly from: number;
}

/** A session's lease on one worker. */
interface Lease {
  readonly id: string;
  readonly worker: WorkerId;
  parts: readonly Part[];
  untilMs: number;
  /** True until the agent's receipt arrives. */
  isPending: boolean;
}

interface Watched {
  readonly session: Session;
  leases: Lease[];
  /**
   * Part of the next lease's id. Incremented if the current lease has blocks that the session no
   * longer uses.
   */
  generation: number;
}

/**
 * Pauses idle sessions: moves the blocks that only one session uses to SSD, under a lease on each
 * worker that has them. When the session continues, or its user is expected to return, fetches the
 * blocks to RAM at once and renews the lease. During activity, renews the lease before half of its
 * TTL has passed. Revokes the lease only when the session ends, because revoking a lease removes
 * its blocks. Blocks that the session no longer uses expire with the lease.
 */
export class IdleSession implements Policy {
  readonly queue: CommandQueue;
  readonly #settings: PolicySettings["idleSession"];
  readonly #sessions: SessionTable;
  /** Active sessions by id, least recently active first. `#asleep` has the paused ones. */
  readonly #awake = new Map<string, Watched>();
  readonly #asleep = new Map<string, Watched>();
  /** Time, per worker that refused a pause, before which the policy sends it no further pause. */
  readonly #refusing = new Map<WorkerId, number>();
  #leases = 0;

  constructor(
    queue: CommandQueue,
    settings: PolicySettings["idleSession"],
    sessions: SessionTable,
  ) {
    this.queue = queue;
    this.#settings = settings;
    this.#sessions = sessions;
  }

  get leases(): number {
    return this.#leases;
  }

  routed(prompt: RoutedPrompt, { session }: Noted, at: Moment): void {
    const { id } = session;
    if (id === null) return;
    const asleep = this.#asleep.get(id);
    const watched = asleep ?? this.#awake.get(id) ?? { session, leases: [], generation: 0 };
    this.#wakeUp(id, watched);
    if (asleep !== undefined) this.#welcome(watched, prompt, at);
    else this.#renewOld(watched, prompt.requestId, at);
  }

  freed({ request: { sessionId = "" } }: RoutedPrompt): void {
    const watched = this.#awake.get(sessionId);
    if (watched !== undefined) this.#wakeUp(sessionId, watched);
  }

  returning(sessionId: string, at: Moment): void {
    const watched = this.#asleep.get(sessionId);
    if (watched === undefined) return;
    watched.session.heardMs = at.heardMs;
    this.#wakeUp(sessionId, watched);
    for (const lease of watched.leases) {
      for (const part of lease.parts) {
        this.#warm(part, part.chain.blocks, lease.worker, lease.worker, null);
      }
      this.#renew(lease, null, at);
    }
  }

  sessionEnded(sessionId: string): void {
    const watched = this.#asleep.get(sessionId) ?? this.#awake.get(sessionId);
    for (const { id, worker } of watched?.leases ?? []) {
      this.queue.send({ requestId: null, worker, command: { type: "RevokeLease", lease_id: id } });
    }
    this.#forget(sessionId);
  }

  sessionDropped({ id }: Session): void {
    if (id !== null) this.#forget(id);
  }

  workerLeft(worker: WorkerId): void {
    this.#refusing.delete(worker);
    for (const map of [this.#awake, this.#asleep]) {
      for (const watched of map.values()) {
        this.#keep(watched, (lease) => lease.worker !== worker);
      }
    }
  }

  tick(at: Moment): void {
    let pauses = this.#settings.pausesPerTick;
    for (const [id, watched] of this.#awake) {
      const { session } = watched;
      if (at.heardMs - session.heardMs < this.#settings.idleMs) break;
      if (pauses <= 0 || !this.queue.hasRoom) break;
      if (session.live > 0) continue;
      this.#awake.delete(id);
      this.#asleep.set(id, watched);
      pauses -= this.#pause(id, watched, at);
    }
    for (const [worker, untilMs] of this.#refusing) {
      if (untilMs <= at.nowMs) this.#refusing.delete(worker);
    }
  }

  #wakeUp(id: string, watched: Watched): void {
    this.#asleep.delete(id);
    this.#awake.delete(id);
    this.#awake.set(id, watched);
  }

  /** Pauses a session on all its workers. Returns the number of commands sent. */
  #pause(id: string, watched: Watched, at: Moment): number {
    this.#keep(watched, ({ untilMs }) => untilMs > at.nowMs);
    const parts = this.#partsOf(watched.session);
    for (const [worker, own] of parts) {
      if (this.#refusing.has(worker)) {
        this.queue.decline("worker_refuses");
        continue;
      }
      const known = watched.leases.find((lease) => lease.worker === worker);
      if (known === undefined && this.#leases >= this.#settings.leasesMax) {
        this.queue.decline("leases");
        continue;
      }
      const lease = known ?? this.#open(id, watched, worker);
      lease.parts = own;
      this.#send(watched, lease, at);
    }
    return parts.size;
  }

  /**
   * Returns the blocks that only this session uses, by worker. Omits parts with fewer than
   * `tokensMin` tokens.
   */
  #partsOf(session: Session): Map<WorkerId, Part[]> {
    const parts = new Map<WorkerId, Part[]>();
    for (const branch of session.branches) {
      const { chain, target } = branch;
      const others = parts.get(target.worker) ?? [];
      const shared = others.map((other) => other.chain.common(chain));
      const from = Math.max(this.#sessions.ownFrom(session, branch), ...shared);
      if ((chain.blocks - from) * chain.blockTokens < this.#settings.tokensMin) continue;
      parts.set(target.worker, [...others, { chain, from }]);
    }
    return parts;
  }

  #open(id: string, watched: Watched, worker: WorkerId): Lease {
    const name = leaseName(id, watched.generation);
    const lease: Lease = { id: name, worker, parts: [], untilMs: 0, isPending: true };
    watched.leases.push(lease);
    this.#leases++;
    return lease;
  }

  #send(watched: Watched, lease: Lease, at: Moment): void {
    const { ttlMs } = this.#settings;
    lease.untilMs = at.nowMs + ttlMs;
    lease.isPending = true;
    const isSent = this.queue.send({
      requestId: null,
      worker: lease.worker,
      command: {
        type: "Pause",
        block_hashes: lease.parts.flatMap(({ chain, from }) => chain.names(from, chain.blocks)),
        ttl_seconds: ttlMs / 1_000,
        lease_id: lease.id,
      },
      settled: (outcome) => this.#paused(watched, lease, outcome, at),
    });
    if (!isSent) this.#keep(watched, (other) => other !== lease);
  }

  #paused(watched: Watched, lease: Lease, outcome: OrderOutcome, at: Moment): void {
    lease.isPending = false;
    if (outcome.kind === "receipt" && outcome.ttlSeconds !== null) {
      lease.untilMs = at.nowMs + outcome.ttlSeconds * 1_000;
    }
    // Without an answer the lease may exist. Keep it, so that its blocks are fetched when the
    // session returns; otherwise it expires by its TTL.
    if (isSomeDone(outcome) || outcome.kind === "no_answer") return;
    this.#keep(watched, (other) => other !== lease);
    if (isAllMissing(outcome)) return;
    this.#refusing.set(lease.worker, at.nowMs + this.#settings.backoffMs);
  }

  /**
   * Handles the first request after a pause: fetches the paused blocks of its prompt to the worker
   * that serves it.
   */
  #welcome(watched: Watched, { chain, target, requestId }: RoutedPrompt, at: Moment): void {
    for (const lease of [...watched.leases]) {
      let [isMeant, goesOn] = [false, false];
      for (const part of lease.parts) {
        const common = part.chain.common(chain);
        if (common <= part.from) continue;
        this.#warm(part, common, target.worker, lease.worker, requestId);
        isMeant = true;
        goesOn ||= common === part.chain.blocks && lease.worker === target.worker;
      }
      if (goesOn) this.#renew(lease, requestId, at);
      if (!isMeant || goesOn) continue;
      this.#keep(watched, (other) => other !== lease);
      watched.generation++;
    }
  }

  #renewOld(watched: Watched, requestId: string, at: Moment): void {
    for (const lease of watched.leases) {
      const isOld = lease.untilMs - at.nowMs < this.#settings.ttlMs / 2;
      if (isOld && !lease.isPending) this.#renew(lease, requestId, at);
    }
  }

  #warm(
    { chain, from }: Part,
    to: number,
    worker: WorkerId,
    source: WorkerId,
    requestId: string | null,
  ): void {
    const hint = worker === source ? {} : { sources: [source] };
    const block_keys = chain.names(from, to);
    this.queue.send({
      requestId,
      worker,
      command: { type: "Warm", block_keys, target_tier: "CPU_TIER1", ...hint },
    });
  }

  #renew(lease: Lease, requestId: string | null, at: Moment): void {
    const new_ttl_seconds = this.#settings.ttlMs / 1_000;
    lease.isPending = true;
    const isSent = this.queue.send({
      requestId,
      worker: lease.worker,
      command: { type: "RenewLease", lease_id: lease.id, new_ttl_seconds },
      settled: (outcome) => {
        lease.isPending = false;
        if (!isSomeDone(outcome)) return;
        const granted = outcome.kind === "receipt" ? outcome.ttlSeconds : null;
        lease.untilMs = at.nowMs + (granted ?? new_ttl_seconds) * 1_000;
      },
    });
    if (!isSent) lease.isPending = false;
  }

  #keep(watched: Watched, isKept: (lease: Lease) => boolean): void {
    const kept = watched.leases.filter(isKept);
    this.#leases -= watched.leases.length - kept.length;
    watched.leases = kept;
  }

  #forget(id: string): void {
    const watched = this.#asleep.get(id) ?? this.#awake.get(id);
    if (watched !== undefined) this.#keep(watched, () => false);
    this.#asleep.delete(id);
    this.#awake.delete(id);
  }
}

function leaseName(session: string, generation: number): string {
  const name = PLAIN.test(session) ? session : Bun.hash.xxHash3(session).toString(16);
  return `session-${name}-${generation}`;
}
