import type { Bus, BusMessage, Consumption, DurableBus } from "../../bus/index.ts";
import {
  ANY,
  decodeAnswer,
  decodeResidencyMessage,
  decodeStoredSnapshot,
  encodeQuery,
  eventsStream,
  eventsSubject,
  queriesSubject,
  type ResidencyAnswer,
  type ResidencyMessage,
  type ResidencyQuery,
  type ResidencyRun,
  type ResidencySnapshotPart,
  snapshotBucket,
  snapshotObject,
} from "../../events/index.ts";
import type {
  ResidencyBatch,
  ResidencyDigest,
  ResidencyHeartbeat,
  ResidencySource,
} from "../../observability/activity/index.ts";

/** Blocks of one source right after it applied change `sequence`. Parents precede children. */
export interface SourceSnapshot {
  readonly source: ResidencySource;
  readonly sequence: number;
  /** True if the source said that the snapshot contains all blocks on its device. */
  readonly isDeviceKnown: boolean;
  readonly runs: readonly ResidencyRun[];
}

/** The reply did not arrive in time, was incomplete, or had inconsistent parts. */
interface Failed {
  readonly kind: "failed";
  readonly why: string;
}

/**
 * Reply to a request for changes. `changes`: batches in order; the first starts at or before the
 * requested number, and batches beyond the requested range may follow. `too_old`: the source has
 * dropped these changes or restarted, so a snapshot is needed.
 */
export type RangeAnswer =
  | { readonly kind: "changes"; readonly batches: readonly ResidencyBatch[] }
  | { readonly kind: "too_old" }
  | Failed;

export type SnapshotAnswer =
  | { readonly kind: "snapshot"; readonly snapshot: SourceSnapshot }
  | Failed;

/**
 * Source of changes that a follower missed. Both methods reject only with ABORTED, when the signal
 * fires.
 */
export interface ResidencyArchive {
  /** Requests the changes from number `from` on, at least up to `to` if the source has them. */
  range(
    source: ResidencySource,
    from: number,
    to: number,
    signal: AbortSignal,
  ): Promise<RangeAnswer>;
  /** Requests a snapshot of this run of the source or of a later one. */
  snapshot(source: ResidencySource, signal: AbortSignal): Promise<SnapshotAnswer>;
}

/** Returns the sequence number of the last change in a batch. */
export function lastOf(batch: ResidencyBatch): number {
  return batch.firstSequence + batch.changes.length - 1;
}

/** Receives the messages of sources in order of arrival. */
export interface ResidencyListener {
  batch(batch: ResidencyBatch): void;
  heartbeat(heartbeat: ResidencyHeartbeat): void;
}

/**
 * Returns true if both digests describe the same blocks. Both are in the order of RESIDENCY_TIERS.
 */
export function sameDigests(a: readonly ResidencyDigest[], b: readonly ResidencyDigest[]): boolean {
  const isSame = (one: ResidencyDigest, at: number) =>
    one.blocks === b[at]?.blocks && one.mix === b[at]?.mix;
  return a.length === b.length && a.every(isSame);
}

/** Part of an archive that only returns snapshots. */
export type SnapshotProvider = Pick<ResidencyArchive, "snapshot">;

/** Maximum source runs remembered as already requested from the first provider. */
const ASKED_MAX = 65_536;

/**
 * Archive that requests the first snapshot of each source run from another provider, if one has it,
 * and everything else from `rest`. If that snapshot was wrong or too old, the next one comes from
 * `rest`.
 */
export class FirstArchive implements ResidencyArchive {
  readonly #first: (source: ResidencySource) => SnapshotProvider | null;
  readonly #rest: ResidencyArchive;
  readonly #asked = new Set<string>();
  /** Number of snapshots taken from the first provider. */
  taken = 0;

  constructor(first: (source: ResidencySource) => SnapshotProvider | null, rest: ResidencyArchive) {
    this.#first = first;
    this.#rest = rest;
  }

  range(
    source: ResidencySource,
    from: number,
    to: number,
    signal: AbortSignal,
  ): Promise<RangeAnswer> {
    return this.#rest.range(source, from, to, signal);
  }

  async snapshot(source: ResidencySource, signal: AbortSignal): Promise<SnapshotAnswer> {
    const answer = await this.#giverOnce(source)?.snapshot(source, signal);
    const isOfRun =
      answer?.kind === "snapshot" && answer.snapshot.source.incarnation === source.incarnation;
    if (!isOfRun) return this.#rest.snapshot(source, signal);
    this.taken++;
    return answer;
  }

  #giverOnce(source: ResidencySource): SnapshotProvider | null {
    const name = `${source.worker}/${source.rank}/${source.incarnation}`;
    if (this.#asked.has(name)) return null;
    const giver = this.#first(source);
    if (giver === null) return null;
    this.#asked.add(name);
    if (this.#asked.size > ASKED_MAX) this.#asked.delete(this.#asked.values().next().value!);
    return giver;
  }
}

/** Estimated size of a stored block: eight bytes for the hash, plus overhead per run. */
const BYTES_PER_BLOCK = 16;

/** Fetches snapshots that agents stored in the broker, next to the event stream. */
export class StoredSnapshots implements SnapshotProvider {
  readonly #durable: DurableBus;
  readonly #bucket: string;
  readonly #blocksMax: number;

  constructor(durable: DurableBus, cluster: string, snapshotBlocksMax: number) {
    this.#durable = durable;
    this.#bucket = snapshotBucket(cluster);
    this.#blocksMax = snapshotBlocksMax;
  }

  async snapshot(source: ResidencySource): Promise<SnapshotAnswer> {
    const name = snapshotObject(source);
    const objects = this.#durable.objects(this.#bucket);
    const read = await objects.get(name, this.#blocksMax * BYTES_PER_BLOCK);
    if (read.kind !== "value") return failed(read.kind);
    const decoded = decodeStoredSnapshot(read.data);
    if (!decoded.ok) return failed(decoded.why);
    const [first, ...rest] = decoded.value;
    const { worker, rank } = first.source;
    if (worker !== source.worker || rank !== source.rank) {
      return failed("the snapshot is of another source");
    }
    const runs = [...first.runs, ...rest.flatMap((part) => part.runs)];
    const { sequence, isDeviceKnown } = first;
    return { kind: "snapshot", snapshot: { source: first.source, sequence, isDeviceKnown, runs } };
  }
}

export interface BusArchiveOptions {
  /** Bus to send requests on. The caller closes it. */
  readonly bus: Bus;
  /** Returns the NATS subject for requests to a source. */
  readonly subjectOf: (source: ResidencySource) => string;
  readonly answerMs: number;
  readonly snapshotBlocksMax: number;
}

/** Maximum reply messages for one request. A longer reply counts as failed. */
const ANSWERS_MAX = 65_536;

/**
 * Requests changes and snapshots from agents over the bus. An inconsistent reply counts as failed.
 */
export class BusArchive implements ResidencyArchive {
  readonly #options: BusArchiveOptions;

  constructor(options: BusArchiveOptions) {
    this.#options = options;
  }

  async range(
    source: ResidencySource,
    from: number,
    to: number,
    signal: AbortSignal,
  ): Promise<RangeAnswer> {
    const batches: ResidencyBatch[] = [];
    const { incarnation } = source;
    for (let next = from; next <= to && batches.length < ANSWERS_MAX; ) {
      const question = { kind: "range", incarnation, from: next, to } as const;
      const answer = await this.#ask(source, question, signal);
      if (answer.kind !== "range") {
        if (batches.length > 0 || answer.kind === "too_new") break;
        const isPast = answer.kind === "evicted" || answer.kind === "other_incarnation";
        return isPast ? { kind: "too_old" } : failed(whyOf(answer));
      }
      const { batch } = answer;
      const isNext = batch.changes.length > 0 && batch.firstSequence <= next;
      if (!isNext || lastOf(batch) < next)
        return failed("the range does not continue at the requested number");
      batches.push(batch);
      next = lastOf(batch) + 1;
    }
    return { kind: "changes", batches };
  }

  async snapshot(source: ResidencySource, signal: AbortSignal): Promise<SnapshotAnswer> {
    const runs: ResidencyRun[] = [];
    let first: ResidencySnapshotPart | null = null;
    let blocks = 0;
    for (let part = 0; part < ANSWERS_MAX; part++) {
      const question = {
        kind: "snapshot",
        incarnation: first?.source.incarnation ?? null,
        snapshot: first?.snapshot ?? null,
        part,
      } as const;
      const answer: ResidencyAnswer | Failed = await this.#ask(source, question, signal);
      if (answer.kind !== "snapshot") return failed(whyOf(answer));
      first ??= answer;
      if (!isOf(first, answer, part)) return failed("the parts belong to different snapshots");
      for (const run of answer.runs) {
        blocks += run.hashes.length;
        runs.push(run);
      }
      if (blocks > this.#options.snapshotBlocksMax) return failed("the snapshot is too large");
      if (!answer.isLast) continue;
      const { sequence, isDeviceKnown } = first;
      return {
        kind: "snapshot",
        snapshot: { source: first.source, sequence, isDeviceKnown, runs },
      };
    }
    return failed("the snapshot is incomplete");
  }

  async #ask(
    source: ResidencySource,
    question: ResidencyQuery,
    signal: AbortSignal,
  ): Promise<ResidencyAnswer | Failed> {
    const { bus, subjectOf, answerMs: timeoutMs } = this.#options;
    const data = encodeQuery(question);
    const outcome = await bus.request(subjectOf(source), data, { timeoutMs, signal });
    if (outcome.kind !== "reply") return failed(outcome.kind);
    const read = decodeAnswer(outcome.message.data);
    if (!read.ok) return failed(read.why);
    const answer = read.value;
    return isOurs(answer, source) ? answer : failed("the answer is of another source");
  }
}

function isOurs(answer: ResidencyAnswer, { worker, rank }: ResidencySource): boolean {
  if (answer.kind === "refused") return true;
  const of = answer.kind === "range" ? answer.batch.source : answer.source;
  return of.worker === worker && of.rank === rank;
}

/** Returns a function that gives the NATS subject for requests to an agent of the cluster. */
export function requestSubject(cluster: string): (source: ResidencySource) => string {
  return ({ worker, rank }) => queriesSubject(cluster, { worker, rank });
}

function isOf(first: ResidencySnapshotPart, other: ResidencySnapshotPart, part: number): boolean {
  return (
    other.part === part &&
    other.snapshot === first.snapshot &&
    other.sequence === first.sequence &&
    other.source.incarnation === first.source.incarnation
  );
}

function whyOf(answer: ResidencyAnswer | Failed): string {
  return "why" in answer ? answer.why : answer.kind;
}

function failed(why: string): Failed {
  return { kind: "failed", why };
}

/**
 * Subscribes to the residency messages of a cluster and passes them to `listener` until disposed.
 */
export function listenOnBus(
  bus: Bus,
  cluster: string,
  listener: ResidencyListener,
  onRefused: () => void,
): Disposable {
  const subscription = bus.subscribe(eventsSubject(cluster, ANY), (message) => {
    if (!takeResidency(message, listener)) onRefused();
  });
  return { [Symbol.dispose]: () => subscription.unsubscribe() };
}

/**
 * Decodes a message and passes it to the listener. Returns false if the message is malformed, or
 * names a different source than its subject.
 */
export function takeResidency(
  { subject, data }: Pick<BusMessage, "subject" | "data">,
  listener: ResidencyListener,
): boolean {
  const read = decodeResidencyMessage(data);
  if (!read.ok || !isOfItsOwn(read.value, subject)) return false;
  if (read.value.kind === "batch") listener.batch(read.value.batch);
  else listener.heartbeat(read.value.heartbeat);
  return true;
}

/**
 * Returns true if a message names the same worker as its subject. The broker authorizes senders by
 * subject, so any other message may be forged.
 */
function isOfItsOwn(message: ResidencyMessage, subject: string): boolean {
  const { source } = message.kind === "batch" ? message.batch : message.heartbeat;
  return subject.endsWith(`.${source.worker}.${source.rank}`);
}

/**
 * Reads the broker's event stream from this router's last position. The sequence number identifies
 * events that were already received over the bus, which are skipped; the others close gaps.
 * Heartbeats in the stream are outdated and ignored. `consumer` names the durable consumer, whose
 * position the broker stores.
 */
export function listenOnStream(
  durable: DurableBus,
  cluster: string,
  consumer: string,
  listener: ResidencyListener,
  onRefused: () => void,
): Consumption {
  const batches: ResidencyListener = {
    batch: (batch) => listener.batch(batch),
    heartbeat: () => undefined,
  };
  const [stream, subject] = [eventsStream(cluster), eventsSubject(cluster, ANY)];
  return durable.consume({ stream, consumer, subject }, async (message) => {
    if (!takeResidency(message, batches)) onRefused();
  });
}

/**
 * Deletes the events of the stream and the stored snapshots. Resolves false if a deletion failed.
 */
export async function forgetStream(durable: DurableBus, cluster: string): Promise<boolean> {
  const subject = eventsSubject(cluster, ANY);
  const purged = await durable.purge(eventsStream(cluster), subject, Number.MAX_SAFE_INTEGER);
  const objects = durable.objects(snapshotBucket(cluster));
  const listed = await objects.list();
  const deleted = await Promise.all((listed ?? []).map(({ name }) => objects.delete(name)));
  return [purged, ...deleted].every(({ kind }) => kind === "done") && listed !== null;
}
