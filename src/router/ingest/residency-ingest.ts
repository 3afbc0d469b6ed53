import type { BusLog } from "../../bus/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import type {
  KeySpace,
  ResidencyBatch,
  ResidencyDigest,
  ResidencyHeartbeat,
  ResidencySource,
} from "../../observability/activity/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import {
  keySpaceName,
  type Target,
  type TargetId,
  type WorkerSpec,
  type WorkerTable,
} from "../workers.ts";
import type { ResidencyArchive, ResidencyListener } from "./archive.ts";
import { Follower, type FollowerParts, hashesIn, PendingBudget } from "./follower.ts";
import { IngestCounts, type IngestSettings } from "./ingest-settings.ts";
import { RecoveryQueue } from "./recovery-queue.ts";

export interface IngestOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly log: BusLog;
  readonly index: PrefixIndex;
  readonly table: WorkerTable;
  readonly archive: ResidencyArchive;
  readonly settings: IngestSettings;
  /**
   * Returns true while the router can receive messages. Missing heartbeats count only during that
   * time.
   */
  readonly isHearing: () => boolean;
  /**
   * Returns true for configured workers. They stay in the table when their heartbeats are missing.
   */
  readonly isConfigured?: (worker: WorkerId, rank: number) => boolean;
}

/** State of one followed source, for other routers, saved snapshots and reports. */
export interface FollowedSource {
  readonly source: ResidencySource;
  readonly target: TargetId;
  readonly sequence: number;
  readonly isKnown: boolean;
  /** True if the source said that it reports all blocks on its device. */
  readonly isDeviceKnown: boolean;
  readonly spaces: readonly KeySpace[];
}

interface Followed {
  readonly follower: Follower;
  readonly spaces: readonly KeySpace[];
  everyMs: number;
  heardMs: number;
}

/** Interval of the check for missing heartbeats. */
const WATCH_MS = 250;
/** Interval between two checks above which the process must have been suspended. */
const STOOD_MS = 4 * WATCH_MS;
/** Maximum closed sources to remember. Late messages of a closed source are ignored. */
const ENDED_MAX = 4_096;
/**
 * Assumed heartbeat interval of a source that was restored from a snapshot, until it sends a
 * heartbeat.
 */
const RESTORED_EVERY_MS = 2_000;

/**
 * Updates worker table and index from the residency messages of agents. A source that sends a
 * heartbeat becomes a worker. If its heartbeats are missing, it becomes stale, then gone.
 */
export class ResidencyIngest implements ResidencyListener, AsyncDisposable {
  readonly #options: IngestOptions;
  readonly #sources = new Map<string, Followed>();
  /** Last incarnation of each closed source. */
  readonly #ended = new Map<string, bigint>();
  readonly #engines = new Set<string>();
  readonly #early = new EarlyBatches();
  readonly #counts = new IngestCounts();
  readonly #budget: PendingBudget;
  readonly #queue: RecoveryQueue;
  readonly #parts: FollowerParts;
  readonly #watches: readonly Disposable[];
  #wasHearing: boolean;
  #lookedMs: number;

  constructor(options: IngestOptions) {
    const { clock, random, settings, index, archive } = options;
    this.#options = options;
    this.#wasHearing = options.isHearing();
    this.#lookedMs = clock.monotonicMs();
    this.#budget = new PendingBudget(settings.pending);
    this.#queue = new RecoveryQueue(clock, random, settings.recovery);
    this.#parts = {
      ...{ clock, index, archive, queue: this.#queue, budget: this.#budget, counts: this.#counts },
      reorderMs: settings.reorderMs,
      onKnown: ({ target, isKnown, isDeviceKnown }) =>
        options.table.setKnown(target, isKnown && isDeviceKnown),
    };
    this.#watches = [
      clock.every(WATCH_MS, () => this.#look()),
      options.table.listen(({ kind, target }) => {
        if (kind === "left") this.#leave(nameOf(target.worker, target.rank));
      }),
    ];
  }

  get counts(): IngestCounts {
    return this.#counts;
  }

  stats() {
    const known = this.sources().filter(({ isKnown }) => isKnown).length;
    return {
      ...this.#counts,
      sources: this.#sources.size,
      known,
      stalled: this.#sources.size - known,
      /** Out-of-order batches dropped because the buffer was full. */
      pendingDropped: this.#budget.dropped,
      pendingHashes: this.#budget.hashes + this.#early.hashes,
      recoveriesRunning: this.#queue.running,
      recoveriesWaiting: this.#queue.waiting,
    };
  }

  /** Returns the followed sources, in the order in which the router began to follow them. */
  sources(): FollowedSource[] {
    return [...this.#sources.values()].map(stateOf);
  }

  find(worker: WorkerId, rank: number): FollowedSource | null {
    const followed = this.#sources.get(nameOf(worker, rank));
    return followed === undefined ? null : stateOf(followed);
  }

  batch(batch: ResidencyBatch): void {
    const followed = this.#sources.get(nameOf(batch.source.worker, batch.source.rank));
    if (followed === undefined) {
      this.#counts.unannounced++;
      this.#early.add(nameOf(batch.source.worker, batch.source.rank), batch);
      return;
    }
    const before = followed.follower.source.incarnation;
    if (batch.source.incarnation >= before) this.#heard(followed);
    followed.follower.batch(batch);
  }

  heartbeat(heartbeat: ResidencyHeartbeat): void {
    const { source } = heartbeat;
    const name = nameOf(source.worker, source.rank);
    this.#counts.heartbeats++;
    const ended = this.#ended.get(name);
    if (ended !== undefined && source.incarnation <= ended) return;
    const before = this.#sources.get(name);
    if (before !== undefined && source.incarnation < before.follower.source.incarnation) {
      this.#counts.stale++;
      return;
    }
    if (heartbeat.isClosing) {
      this.#close(name, source);
      return;
    }
    const followed = this.#follow(name, heartbeat, before);
    if (followed === null) return;
    followed.everyMs = heartbeat.everyMs;
    this.#heard(followed);
    followed.follower.heartbeat(heartbeat);
    if (before !== undefined) return;
    for (const batch of this.#early.take(name)) followed.follower.batch(batch);
  }

  /** Adds a source from a saved snapshot. The index must already contain its blocks. */
  restore(saved: Omit<FollowedSource, "isKnown">): void {
    const { worker, rank } = saved.source;
    const name = nameOf(worker, rank);
    if (this.#sources.has(name) || this.#isFull) return;
    const follower = new Follower(this.#parts, saved.source, saved.target);
    const heardMs = this.#options.clock.monotonicMs();
    const { spaces } = saved;
    this.#sources.set(name, { follower, spaces, everyMs: RESTORED_EVERY_MS, heardMs });
    follower.restore(saved.sequence, saved.isDeviceKnown);
  }

  /**
   * Compares the digests of a source with another router's. If they differ, a recovery is
   * scheduled.
   */
  compare(source: ResidencySource, sequence: number, digests: readonly ResidencyDigest[]): void {
    const follower = this.#sources.get(nameOf(source.worker, source.rank))?.follower;
    if (follower?.source.incarnation === source.incarnation) follower.compare(sequence, digests);
  }

  /**
   * Ignores the messages of a worker's agent until `release`, because the router receives its
   * engine's events directly.
   */
  claim(worker: WorkerId, rank: number): void {
    const name = nameOf(worker, rank);
    this.#engines.add(name);
    const follower = this.#leave(name);
    if (follower !== null) this.#options.table.setKnown(follower.target, false);
  }

  /** Accepts the messages of a worker's agent again, after `claim`. */
  release(worker: WorkerId, rank: number): void {
    this.#engines.delete(nameOf(worker, rank));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const watch of this.#watches) watch[Symbol.dispose]();
    for (const { follower } of this.#sources.values()) follower[Symbol.dispose]();
    this.#sources.clear();
    await this.#queue[Symbol.asyncDispose]();
  }

  get #isFull(): boolean {
    return this.#sources.size >= this.#options.settings.targetsMax;
  }

  /** Adds a new source to the table, or updates its entry if its properties changed. */
  #follow(
    name: string,
    heartbeat: ResidencyHeartbeat,
    before: Followed | undefined,
  ): Followed | null {
    const { source, spaces } = heartbeat;
    const known = this.#options.table.find(source.worker, source.rank);
    const isSame = before !== undefined && sameSpaces(before.spaces, spaces);
    if (isSame && spaces.every((space) => includes(known?.spaces ?? [], space))) return before;
    if (this.#engines.has(name)) return null;
    if (before === undefined && this.#isFull) {
      if (this.#counts.overfull++ === 0) {
        const { log } = this.#options;
        log("warn", "worker not followed", { worker: source.worker, rank: source.rank });
      }
      return null;
    }
    const all = spacesWith(known?.spaces ?? [], before?.spaces ?? [], spaces);
    const target = this.#register(announcedSpec(source, all, known));
    if (target === null) return before ?? null;
    const follower = before?.follower ?? new Follower(this.#parts, source, target.id);
    const heardMs = this.#options.clock.monotonicMs();
    const followed = { follower, spaces, everyMs: heartbeat.everyMs, heardMs };
    this.#sources.set(name, followed);
    return followed;
  }

  /**
   * Adds or updates a worker in the table. Returns null if `spec` is null or the table is full.
   */
  #register(spec: WorkerSpec | null): Target | null {
    try {
      return spec === null ? null : this.#options.table.put(spec);
    } catch {
      this.#counts.overfull++;
      return null;
    }
  }

  #heard(followed: Followed): void {
    followed.heardMs = this.#options.clock.monotonicMs();
    const { table } = this.#options;
    const { target } = followed.follower;
    if (table.get(target)?.state === "stale") table.setState(target, "live");
  }

  #close(name: string, source: ResidencySource): void {
    this.#ended.set(name, source.incarnation);
    if (this.#ended.size > ENDED_MAX) this.#ended.delete(this.#ended.keys().next().value!);
    this.#options.log("info", "worker left", { worker: source.worker, rank: source.rank });
    this.#drop(name);
  }

  #drop(name: string): void {
    const follower = this.#leave(name);
    if (follower === null) return;
    const { table, isConfigured } = this.#options;
    const { worker, rank } = follower.source;
    if (isConfigured?.(worker, rank) === true) return;
    table.setState(follower.target, "gone");
    table.remove(follower.target);
  }

  /**
   * Stops following a source and drops its blocks. Returns its follower. The worker may stay in the
   * table.
   */
  #leave(name: string): Follower | null {
    const follower = this.#sources.get(name)?.follower;
    if (follower === undefined) return null;
    this.#sources.delete(name);
    follower[Symbol.dispose]();
    this.#options.index.drop(follower.target);
    return follower;
  }

  #look(): void {
    const { clock, settings, table, log } = this.#options;
    const nowMs = clock.monotonicMs();
    const isHearing = this.#options.isHearing();
    // After this process was suspended, missing heartbeats do not mean that a source is silent.
    const hasStood = nowMs - this.#lookedMs > STOOD_MS;
    this.#lookedMs = nowMs;
    if (isHearing && (!this.#wasHearing || hasStood)) this.#begin(nowMs);
    this.#wasHearing = isHearing;
    if (!isHearing) return;
    for (const [name, followed] of this.#sources) {
      const { follower, everyMs, heardMs } = followed;
      const silentMs = nowMs - heardMs;
      if (silentMs > everyMs * settings.goneBeats) {
        log("warn", "worker silent, removing it", { worker: follower.source.worker });
        this.#drop(name);
      } else if (silentMs > everyMs * settings.staleBeats) {
        const state = table.get(follower.target)?.state;
        if (state === "live") table.setState(follower.target, "stale");
      }
    }
  }

  /**
   * Restarts the silence timers and retries failed recoveries. Called when the router can receive
   * messages again.
   */
  #begin(nowMs: number): void {
    for (const followed of this.#sources.values()) followed.heardMs = nowMs;
    this.#queue.retryNow();
  }
}

function stateOf({ follower, spaces }: Followed): FollowedSource {
  const { source, target, sequence, isKnown, isDeviceKnown } = follower;
  return { source, target, sequence, isKnown, isDeviceKnown, spaces };
}

function nameOf(worker: WorkerId, rank: number): string {
  return `${worker}/${rank}`;
}

/**
 * Returns a worker's properties, from a heartbeat and from the table, which takes precedence.
 * Returns null if its model is unknown.
 */
function announcedSpec(
  { worker, rank }: ResidencySource,
  spaces: readonly KeySpace[],
  known: Target | null,
): WorkerSpec | null {
  const model = known?.model ?? spaces[0]?.model;
  if (model === undefined) return null;
  const { role = "both", url = null, totalBlocks = null, batchTokensMax = null } = known ?? {};
  return { worker, rank, model, spaces, role, url, totalBlocks, batchTokensMax };
}

/**
 * Returns the announced key spaces, and those of the configuration that the source never announced.
 */
function spacesWith(
  known: readonly KeySpace[],
  saidBefore: readonly KeySpace[],
  said: readonly KeySpace[],
): readonly KeySpace[] {
  const others = known.filter((space) => !includes(saidBefore, space) && !includes(said, space));
  return [...others, ...said];
}

function sameSpaces(a: readonly KeySpace[], b: readonly KeySpace[]): boolean {
  return a.length === b.length && b.every((space) => includes(a, space));
}

function includes(spaces: readonly KeySpace[], one: KeySpace): boolean {
  const name = keySpaceName(one);
  return spaces.some((space) => keySpaceName(space) === name);
}

/** Maximum sources with buffered batches. At the limit, the source buffered longest is dropped. */
const SOURCES_MAX = 256;
const HASHES_MAX = 2 ** 20;

/**
 * Buffers batches of sources that have not sent a heartbeat yet. A stream replays stored events
 * before the first heartbeat. If the buffer is full, the oldest batches are dropped and requested
 * later.
 */
class EarlyBatches {
  readonly #sources = new Map<string, ResidencyBatch[]>();
  #hashes = 0;

  get hashes(): number {
    return this.#hashes;
  }

  add(name: string, batch: ResidencyBatch): void {
    const batches = this.#sources.get(name) ?? [];
    this.#sources.set(name, batches);
    batches.push(batch);
    this.#hashes += hashesIn(batch);
    if (this.#sources.size > SOURCES_MAX) this.take(this.#sources.keys().next().value!);
    while (this.#hashes > HASHES_MAX) {
      const [oldest, waiting] = this.#sources.entries().next().value!;
      this.#hashes -= hashesIn(waiting.shift()!);
      if (waiting.length === 0) this.#sources.delete(oldest);
    }
  }

  /** Removes and returns the batches of one source, in order of arrival. */
  take(name: string): readonly ResidencyBatch[] {
    const batches = this.#sources.get(name) ?? [];
    this.#sources.delete(name);
    for (const batch of batches) this.#hashes -= hashesIn(batch);
    return batches;
  }
}
