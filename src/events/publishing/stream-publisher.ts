import type { BucketWrite, Bus, BusLog, DurableBus, DurableOutcome } from "../../bus/index.ts";
import { type Clock, sleep } from "../../core/index.ts";
import type { ResidencyBatch } from "../../observability/activity/index.ts";
import {
  encodeBatch,
  encodeHeartbeat,
  encodeStoredSnapshot,
  eventsSubject,
  RESIDENCY_LIMITS,
  snapshotObject,
  splitBatch,
} from "../index.ts";
import { messageBytesMax } from "./bus-publisher.ts";
import type { ResidencyLog } from "./residency-log.ts";
import { partOf, type Snapshots } from "./snapshots.ts";

export interface StreamPublisherOptions {
  readonly residency: ResidencyLog;
  readonly snapshots: Snapshots;
  /** Not closed by the publisher. */
  readonly bus: Bus;
  readonly durable: DurableBus;
  readonly cluster: string;
  /** Stream and bucket, both created by the operator. */
  readonly stream: string;
  readonly bucket: string;
  /** Number of messages after the latest stored snapshot at which another one is stored. */
  readonly snapshotMessages: number;
  /** Interval at which a snapshot is stored if anything changed. */
  readonly snapshotEveryMs: number;
  readonly clock: Clock;
  readonly log: BusLog;
}

export type StreamPublisherState = StreamPublisher["state"];

const ACK_MS = 5_000;
const STOP_MS = 1_000;
/** Waits after a failure, doubled each time up to the maximum. */
const RETRY_MIN_MS = 100;
const RETRY_MAX_MS = 2_000;

interface Message {
  readonly id: string;
  readonly data: Uint8Array;
  readonly last: number;
}

/**
 * Publishes the changes of one rank to a stream, each once and in order, as far as the ring has
 * them, and stores snapshots at intervals, so that the stream may expire covered changes. While the
 * broker is unavailable, changes wait in the ring.
 */
export class StreamPublisher implements AsyncDisposable {
  readonly #options: StreamPublisherOptions;
  readonly #subject: string;
  readonly #stopping = new AbortController();
  readonly #listening: Disposable;
  readonly #running: Promise<unknown>;
  #wake = Promise.withResolvers<void>();
  /** Number of the last change that the broker has acknowledged. */
  #cursor = 0;
  #streamSequence = 0;
  /** The message sent and not acknowledged; it is resent unchanged. */
  #pending: Message | null = null;
  #publishProblem: Problem | null = null;
  #snapshotProblem: Problem | null = null;
  #sinceSnapshot = 0;
  #wantsSnapshot = true;
  #snapshotMs = Number.NEGATIVE_INFINITY;
  readonly #counts = {
    acknowledged: 0,
    /** Times more changes waited than the ring keeps: the stream continues after a gap. */
    holes: 0,
    storedSnapshots: 0,
    /** Change number of the latest stored snapshot; null before the first. */
    snapshotSequence: null as number | null,
  };

  constructor(options: StreamPublisherOptions) {
    const { residency, cluster } = options;
    this.#options = options;
    this.#subject = eventsSubject(cluster, residency.source);
    this.#listening = residency.listen(() => this.#wake.resolve());
    this.#running = Promise.all([this.#publishAll(), this.#storeSnapshots()]);
  }

  /**
   * `waiting`: for a connection. `refused`: the broker accepts no message or no snapshot, for the
   * reason `why`. `behind`: changes waiting for the broker's acknowledgement.
   */
  get state() {
    const problem = this.#publishProblem ?? this.#snapshotProblem;
    const status = problem?.status ?? ("publishing" as const);
    const behind = this.#options.residency.lastSequence - this.#cursor;
    return { status, why: problem?.why ?? null, behind, ...this.#counts };
  }

  /**
   * Stops publishing; waiting changes are in the next run's snapshot. Waits a limited time for
   * outstanding acknowledgements, which end with the connection.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    this.#listening[Symbol.dispose]();
    this.#wake.resolve();
    const late = new AbortController();
    const giveUp = sleep(this.#options.clock, STOP_MS, late.signal).catch(() => undefined);
    await Promise.race([this.#running, giveUp]);
    late.abort();
  }

  get #isOver(): boolean {
    return this.#stopping.signal.aborted;
  }

  async #publishAll(): Promise<void> {
    let retryMs = RETRY_MIN_MS;
    while (!this.#isOver) {
      this.#pending ??= this.#next();
      if (this.#pending === null) {
        this.#wake = Promise.withResolvers();
        if (this.#options.residency.lastSequence === this.#cursor) await this.#wake.promise;
        continue;
      }
      const { id, data, last } = this.#pending;
      const outcome = await this.#send(data, id);
      this.#publishProblem = this.#problemOf(outcome);
      if (outcome.kind !== "acknowledged") {
        await this.#pause(retryMs);
        retryMs = Math.min(retryMs * 2, RETRY_MAX_MS);
        continue;
      }
      retryMs = RETRY_MIN_MS;
      this.#cursor = last;
      this.#streamSequence = outcome.sequence;
      this.#counts.acknowledged++;
      this.#sinceSnapshot++;
      this.#pending = null;
    }
  }

  /** Builds the next message; null if the broker has everything. */
  #next(): Message | null {
    const { residency, bus, clock, log } = this.#options;
    const { ring, source } = residency;
    if (ring.last === this.#cursor) return null;
    if (ring.first > this.#cursor + 1) {
      const changes = ring.first - this.#cursor - 1;
      log("warn", "stream publisher fell behind the ring, changes skipped", { changes });
      this.#counts.holes++;
      this.#cursor = ring.first - 1;
      this.#wantsSnapshot = true;
    }
    const firstSequence = this.#cursor + 1;
    const changes = ring.slice(firstSequence, this.#cursor + RESIDENCY_LIMITS.changesMax);
    const all: ResidencyBatch = { source, firstSequence, changes };
    const [batch] = splitBatch(all, messageBytesMax(bus, Number.POSITIVE_INFINITY));
    const id = `${source.worker}.${source.rank}.${source.incarnation}.${firstSequence}`;
    const data = encodeBatch(batch!, clock.wallMs());
    return { id, data, last: firstSequence + batch!.changes.length - 1 };
  }

  #send(data: Uint8Array, id: string): Promise<DurableOutcome> {
    return this.#options.durable.publish(this.#subject, data, { id, timeoutMs: ACK_MS });
  }

  async #storeSnapshots(): Promise<void> {
    const { clock, snapshotMessages, snapshotEveryMs } = this.#options;
    let waitMs = RETRY_MIN_MS;
    while (!this.#isOver) {
      const isOld = clock.monotonicMs() - this.#snapshotMs >= snapshotEveryMs;
      const isDue = this.#sinceSnapshot >= snapshotMessages || (isOld && this.#sinceSnapshot > 0);
      if (this.#wantsSnapshot || isDue) await this.#storeOne();
      const isWell = this.#snapshotProblem === null;
      waitMs = isWell ? RETRY_MIN_MS : Math.min(waitMs * 2, RETRY_MAX_MS);
      await this.#pause(waitMs);
    }
  }

  async #storeOne(): Promise<void> {
    const { durable, snapshots, bucket, stream, clock, residency } = this.#options;
    if (!(await this.#mark())) return;
    // The snapshot covers everything the broker has by now.
    const [covered, messages] = [this.#streamSequence, this.#sinceSnapshot];
    const cursor = this.#cursor;
    this.#wantsSnapshot = false;
    const snapshot = await snapshots.take();
    if (snapshot === null || snapshot.sequence < cursor) {
      // No snapshot can be taken now, or an older one was returned.
      this.#wantsSnapshot = true;
      return;
    }
    const parts = snapshot.parts.map((_, part) => partOf(snapshot, part));
    const data = await encodeStoredSnapshot(parts);
    const written = await durable.objects(bucket).put(snapshotObject(residency.source), data);
    this.#snapshotProblem = this.#problemOf(written);
    if (written.kind !== "done") {
      this.#wantsSnapshot = true;
      return;
    }
    this.#counts.storedSnapshots++;
    this.#counts.snapshotSequence = snapshot.sequence;
    this.#snapshotMs = clock.monotonicMs();
    this.#sinceSnapshot -= messages;
    if (covered > 0) {
      this.#snapshotProblem = this.#problemOf(await durable.purge(stream, this.#subject, covered));
    }
  }

  /**
   * Before the first message: reads the position of the stream, including messages of earlier runs.
   */
  async #mark(): Promise<boolean> {
    if (this.#streamSequence > 0) return true;
    const { residency, clock } = this.#options;
    const data = encodeHeartbeat(residency.heartbeat(), clock.wallMs());
    const { worker, rank, incarnation } = residency.source;
    const outcome = await this.#send(data, `${worker}.${rank}.${incarnation}.begin`);
    this.#snapshotProblem = this.#problemOf(outcome);
    if (outcome.kind !== "acknowledged") return false;
    this.#streamSequence = Math.max(this.#streamSequence, outcome.sequence);
    return true;
  }

  #problemOf(outcome: DurableOutcome | BucketWrite): Problem | null {
    if (outcome.kind === "refused") return { status: "refused", why: outcome.why };
    if (outcome.kind !== "unreachable") return null;
    // If the subject has subscribers but no stream, no error is returned.
    const isConnected = this.#options.bus.state.status === "connected";
    const why = isConnected
      ? `no answer for ${this.#subject}: check that a stream captures it`
      : "no connection";
    return { status: "waiting", why };
  }

  async #pause(ms: number): Promise<void> {
    await sleep(this.#options.clock, ms, this.#stopping.signal).catch(() => undefined);
  }
}

interface Problem {
  readonly status: "waiting" | "refused";
  readonly why: string;
}
