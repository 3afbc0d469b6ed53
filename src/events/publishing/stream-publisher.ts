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
import type { ResidencyFeed } from "./residency-feed.ts";
import { partOf, type Snapshots } from "./snapshots.ts";

export interface StreamPublisherOptions {
  readonly feed: ResidencyFeed;
  readonly snapshots: Snapshots;
  /** Not closed here. */
  readonly bus: Bus;
  readonly durable: DurableBus;
  readonly cluster: string;
  /** Both made by the operator. */
  readonly stream: string;
  readonly bucket: string;
  /** So many messages behind the latest stored snapshot, another is stored. */
  readonly snapshotMessages: number;
  /** And after so long, where anything changed. */
  readonly snapshotEveryMs: number;
  readonly clock: Clock;
  readonly log: BusLog;
}

export interface StreamPublisherState {
  /** `waiting`: for a connection. `refused`: the broker takes no message, or no snapshot. */
  readonly status: "publishing" | "waiting" | "refused";
  /** In words for people; null while publishing. */
  readonly why: string | null;
  /** Changes that wait for the broker's word. */
  readonly behind: number;
  readonly acknowledged: number;
  /** Times more was waiting than the ring keeps: the stream goes on behind a hole. */
  readonly holes: number;
  readonly storedSnapshots: number;
  /** Number of the change the latest stored snapshot was made at; null: there is none so far. */
  readonly snapshotSequence: number | null;
}

const ACK_MS = 5_000;
const STOP_MS = 1_000;
/** Waits after a failure, doubled each time up to the second. */
const RETRY_MIN_MS = 100;
const RETRY_MAX_MS = 2_000;

interface Message {
  readonly id: string;
  readonly data: Uint8Array;
  readonly last: number;
}

/**
 * Writes the changes of one rank into a stream, each once and in order, as far as the ring leads
 * back; and from time to time all that is held as an object, so that the stream may forget what
 * that covers. While the broker is away the ring is what waits.
 */
export class StreamPublisher implements AsyncDisposable {
  readonly #options: StreamPublisherOptions;
  readonly #subject: string;
  readonly #stopping = new AbortController();
  readonly #listening: Disposable;
  readonly #running: Promise<unknown>;
  #wake = Promise.withResolvers<void>();
  /** Number of the last change that the broker has. */
  #cursor = 0;
  #streamSequence = 0;
  /** What was sent and not acknowledged: sent again just as it was. */
  #pending: Message | null = null;
  #publishProblem: Problem | null = null;
  #snapshotProblem: Problem | null = null;
  #acknowledged = 0;
  #sinceSnapshot = 0;
  #wantsSnapshot = true;
  #snapshotMs = Number.NEGATIVE_INFINITY;
  #holes = 0;
  #stored = 0;
  #snapshotSequence: number | null = null;

  constructor(options: StreamPublisherOptions) {
    const { feed, cluster } = options;
    this.#options = options;
    this.#subject = eventsSubject(cluster, feed.source);
    this.#listening = feed.listen(() => this.#wake.resolve());
    this.#running = Promise.all([this.#publishAll(), this.#storeSnapshots()]);
  }

  get state(): StreamPublisherState {
    const problem = this.#publishProblem ?? this.#snapshotProblem;
    return {
      status: problem?.status ?? "publishing",
      why: problem?.why ?? null,
      behind: this.#options.feed.lastSequence - this.#cursor,
      acknowledged: this.#acknowledged,
      holes: this.#holes,
      storedSnapshots: this.#stored,
      snapshotSequence: this.#snapshotSequence,
    };
  }

  /**
   * Publishes nothing more; what waits is in the next run's snapshot. It waits a little for what
   * the broker has been asked, which ends with the connection.
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
        if (this.#options.feed.lastSequence === this.#cursor) await this.#wake.promise;
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
      this.#acknowledged++;
      this.#sinceSnapshot++;
      this.#pending = null;
    }
  }

  /** What follows what the broker has; null: nothing so far. */
  #next(): Message | null {
    const { feed, bus, clock, log } = this.#options;
    const { ring, source } = feed;
    if (ring.last === this.#cursor) return null;
    if (ring.first > this.#cursor + 1) {
      const changes = ring.first - this.#cursor - 1;
      log("warn", "more changes waited for the stream than are kept", { changes });
      this.#holes++;
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
    const { durable, snapshots, bucket, stream, clock, feed } = this.#options;
    if (!(await this.#mark())) return;
    // Whatever the broker has by now, the snapshot has too.
    const [covered, messages] = [this.#streamSequence, this.#sinceSnapshot];
    const cursor = this.#cursor;
    this.#wantsSnapshot = false;
    const snapshot = await snapshots.take();
    if (snapshot === null || snapshot.sequence < cursor) {
      // None can be made now, or an earlier one was handed on.
      this.#wantsSnapshot = true;
      return;
    }
    const parts = snapshot.parts.map((_, part) => partOf(snapshot, part));
    const data = await encodeStoredSnapshot(parts);
    const written = await durable.objects(bucket).put(snapshotObject(feed.source), data);
    this.#snapshotProblem = this.#problemOf(written);
    if (written.kind !== "done") {
      this.#wantsSnapshot = true;
      return;
    }
    this.#stored++;
    this.#snapshotSequence = snapshot.sequence;
    this.#snapshotMs = clock.monotonicMs();
    this.#sinceSnapshot -= messages;
    if (covered > 0) {
      this.#snapshotProblem = this.#problemOf(await durable.purge(stream, this.#subject, covered));
    }
  }

  /** Before the first one: where the stream stands, with all it has of earlier runs. */
  async #mark(): Promise<boolean> {
    if (this.#streamSequence > 0) return true;
    const { feed, clock } = this.#options;
    const data = encodeHeartbeat(feed.heartbeat(), clock.wallMs());
    const { worker, rank, incarnation } = feed.source;
    const outcome = await this.#send(data, `${worker}.${rank}.${incarnation}.begin`);
    this.#snapshotProblem = this.#problemOf(outcome);
    if (outcome.kind !== "acknowledged") return false;
    this.#streamSequence = Math.max(this.#streamSequence, outcome.sequence);
    return true;
  }

  #problemOf(outcome: DurableOutcome | BucketWrite): Problem | null {
    if (outcome.kind === "refused") return { status: "refused", why: outcome.why };
    if (outcome.kind !== "unreachable") return null;
    // Where somebody listens and no stream does, nobody says so.
    const isConnected = this.#options.bus.state.status === "connected";
    const why = isConnected
      ? `no answer for ${this.#subject}: is there a stream that keeps it?`
      : "there is no connection";
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
