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
  /** The bus to publish on. The caller owns it; the publisher does not close it. */
  readonly bus: Bus;
  readonly durable: DurableBus;
  readonly cluster: string;
  /** Name of the JetStream stream. The operator creates both the stream and the bucket. */
  readonly stream: string;
  readonly bucket: string;
  /** Number of messages since the latest stored snapshot after which another snapshot is stored. */
  readonly snapshotMessages: number;
  /** Ms between stored snapshots, if anything changed. */
  readonly snapshotEveryMs: number;
  readonly clock: Clock;
  readonly log: BusLog;
}

export type StreamPublisherState = StreamPublisher["state"];

const ACK_MS = 5_000;
const STOP_MS = 1_000;
/** Waits in ms after a failure: the first, doubled each time up to the maximum. */
const RETRY_MIN_MS = 100;
const RETRY_MAX_MS = 2_000;

interface Message {
  readonly id: string;
  readonly data: Uint8Array;
  readonly last: number;
}

/**
 * Publishes the changes of one rank to a JetStream stream, each once and in order, as long as the
 * ring still has them. Also stores snapshots at intervals, so that the stream may expire the
 * changes that a snapshot covers. While the broker is unavailable, changes wait in the ring.
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
  /** The message that was sent but not acknowledged. It is sent again unchanged. */
  #pending: Message | null = null;
  #publishProblem: Problem | null = null;
  #snapshotProblem: Problem | null = null;
  #sinceSnapshot = 0;
  #wantsSnapshot = true;
  #snapshotMs = Number.NEGATIVE_INFINITY;
  readonly #counts = {
    acknowledged: 0,
    /** Number of gaps in the stream: more changes were waiting than the ring keeps. */
    holes: 0,
    storedSnapshots: 0,
    /** Number of the last change in the latest stored snapshot. Null before the first. */
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
   * State of publishing. `waiting`: the bus is disconnected. `refused`: the broker rejects messages
   * or snapshots; `why` has the reason. `behind`: number of changes that the broker has not
   * acknowledged.
   */
  get state() {
    const problem = this.#publishProblem ?? this.#snapshotProblem;
    const status = problem?.status ?? ("publishing" as const);
    const behind = this.#options.residency.lastSequence - this.#cursor;
    return { status, why: problem?.why ?? null, behind, ...this.#counts };
  }

  /**
   * Stops publishing. Changes that were not sent will be part of the next run's snapshot. Waits a
   * limited time for outstanding acknowledgements, which cannot arrive after the connection is
   * closed.
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

  /** Builds the next message. Null if the broker has all changes. */
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
    // The snapshot will cover all changes that the broker has at this moment.
    const [covered, messages] = [this.#streamSequence, this.#sinceSnapshot];
    const cursor = this.#cursor;
    this.#wantsSnapshot = false;
    const snapshot = await snapshots.take();
    if (snapshot === null || snapshot.sequence < cursor) {
      // Either no snapshot can be taken now, or the returned one is older than these changes.
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
   * Reads the stream's last position before the first message is sent; it includes messages of
   * earlier runs. Returns false on failure.
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
    // The broker returns no error if the subject has subscribers but no stream.
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
