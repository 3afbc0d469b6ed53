import type {
  Bus,
  BusMessage,
  Consumption,
  ConsumptionState,
  DurableBus,
} from "../../bus/index.ts";
import {
  ANY,
  decodeAnswer,
  decodeResidencyMessage,
  decodeStoredSnapshot,
  encodeQuestion,
  eventsStream,
  eventsSubject,
  questionsSubject,
  type ResidencyAnswer,
  type ResidencyMessage,
  type ResidencyQuestion,
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
import { lastOf } from "./pending.ts";

/** All that one source has, as it was at `sequence`. Parents stand before their children. */
export interface Picture {
  readonly source: ResidencySource;
  readonly sequence: number;
  /** All that the device holds is among it, as the source says. */
  readonly isDeviceKnown: boolean;
  readonly runs: readonly ResidencyRun[];
}

/**
 * `changes`: in order, the first at or before the number that was asked for; there may be more
 * behind. `too_old`: it keeps them no more, or is another run: only a picture helps.
 */
export type RangeAnswer =
  | { readonly kind: "changes"; readonly batches: readonly ResidencyBatch[] }
  | { readonly kind: "too_old" }
  | { readonly kind: "failed"; readonly why: string };

/** `failed`: nobody answered in time, it came only in part, or its parts do not fit together. */
export type PictureAnswer =
  | { readonly kind: "picture"; readonly picture: Picture }
  | { readonly kind: "failed"; readonly why: string };

/** Where what was missed is asked for. Neither rejects, but with ABORTED when the signal fires. */
export interface ResidencyArchive {
  /** Changes from number `from` on, to `to` at least where they are there. */
  range(
    source: ResidencySource,
    from: number,
    to: number,
    signal: AbortSignal,
  ): Promise<RangeAnswer>;
  /** Of that incarnation, or of a later one. */
  picture(source: ResidencySource, signal: AbortSignal): Promise<PictureAnswer>;
}

/** Takes what sources say of themselves, as it comes. */
export interface ResidencyListener {
  batch(batch: ResidencyBatch): void;
  heartbeat(heartbeat: ResidencyHeartbeat): void;
}

/** Whether two count the same blocks; both in the order of RESIDENCY_TIERS. */
export function sameDigests(a: readonly ResidencyDigest[], b: readonly ResidencyDigest[]): boolean {
  const isSame = (one: ResidencyDigest, at: number) =>
    one.blocks === b[at]?.blocks && one.mix === b[at]?.mix;
  return a.length === b.length && a.every(isSame);
}

/** Gives pictures, and nothing else. */
export type PictureGiver = Pick<ResidencyArchive, "picture">;

/** Runs of sources that were asked for there are remembered, so many. */
const ASKED_MAX = 65_536;

/**
 * Gets the first picture of each run of a source from somewhere else, where that has one, and all
 * else from `rest`: what was wrong or too old once is not taken from there again.
 */
export class FirstArchive implements ResidencyArchive {
  readonly #first: (source: ResidencySource) => PictureGiver | null;
  readonly #rest: ResidencyArchive;
  readonly #asked = new Set<string>();
  /** Pictures that came from the first. */
  taken = 0;

  constructor(first: (source: ResidencySource) => PictureGiver | null, rest: ResidencyArchive) {
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

  async picture(source: ResidencySource, signal: AbortSignal): Promise<PictureAnswer> {
    const answer = await this.#giverOnce(source)?.picture(source, signal);
    const isOfRun =
      answer?.kind === "picture" && answer.picture.source.incarnation === source.incarnation;
    if (!isOfRun) return this.#rest.picture(source, signal);
    this.taken++;
    return answer;
  }

  #giverOnce(source: ResidencySource): PictureGiver | null {
    const name = `${source.worker}/${source.rank}/${source.incarnation}`;
    if (this.#asked.has(name)) return null;
    const giver = this.#first(source);
    if (giver === null) return null;
    this.#asked.add(name);
    if (this.#asked.size > ASKED_MAX) this.#asked.delete(this.#asked.values().next().value!);
    return giver;
  }
}

/** Eight bytes a block and something for each run. */
const BYTES_PER_BLOCK = 16;

/** Pictures that publishers keep with the broker, beside the stream of their events. */
export class StoredPictures implements PictureGiver {
  readonly #durable: DurableBus;
  readonly #bucket: string;
  readonly #blocksMax: number;

  constructor(durable: DurableBus, cluster: string, pictureBlocksMax: number) {
    this.#durable = durable;
    this.#bucket = snapshotBucket(cluster);
    this.#blocksMax = pictureBlocksMax;
  }

  async picture(source: ResidencySource): Promise<PictureAnswer> {
    const name = snapshotObject(source);
    const objects = this.#durable.objects(this.#bucket);
    const read = await objects.get(name, this.#blocksMax * BYTES_PER_BLOCK);
    if (read.kind !== "value") return { kind: "failed", why: read.kind };
    const decoded = decodeStoredSnapshot(read.data);
    if (!decoded.ok) return { kind: "failed", why: decoded.why };
    const [first, ...rest] = decoded.value;
    const { worker, rank } = first.source;
    if (worker !== source.worker || rank !== source.rank) {
      return { kind: "failed", why: "a picture of another source" };
    }
    const runs = [...first.runs, ...rest.flatMap((part) => part.runs)];
    const { sequence, isDeviceKnown } = first;
    return { kind: "picture", picture: { source: first.source, sequence, isDeviceKnown, runs } };
  }
}

export interface BusArchiveOptions {
  /** Not closed here. */
  readonly bus: Bus;
  /** Where a source is asked. */
  readonly subjectOf: (source: ResidencySource) => string;
  readonly answerMs: number;
  readonly pictureBlocksMax: number;
}

/** Answers that one range or picture may take; more are no honest ones. */
const ANSWERS_MAX = 65_536;

type Failed = { readonly kind: "failed"; readonly why: string };

/** Asks publishers over the bus. What does not fit together counts as no answer. */
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
      if (!isNext || lastOf(batch) < next) return failed("a range that is another");
      batches.push(batch);
      next = lastOf(batch) + 1;
    }
    return { kind: "changes", batches };
  }

  async picture(source: ResidencySource, signal: AbortSignal): Promise<PictureAnswer> {
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
      if (!isOf(first, answer, part)) return failed("parts of different pictures");
      for (const run of answer.runs) {
        blocks += run.hashes.length;
        runs.push(run);
      }
      if (blocks > this.#options.pictureBlocksMax) return failed("a picture that is too large");
      if (!answer.isLast) continue;
      const { sequence, isDeviceKnown } = first;
      return { kind: "picture", picture: { source: first.source, sequence, isDeviceKnown, runs } };
    }
    return failed("a picture without an end");
  }

  async #ask(
    source: ResidencySource,
    question: ResidencyQuestion,
    signal: AbortSignal,
  ): Promise<ResidencyAnswer | Failed> {
    const { bus, subjectOf, answerMs: timeoutMs } = this.#options;
    const data = encodeQuestion(question);
    const outcome = await bus.request(subjectOf(source), data, { timeoutMs, signal });
    if (outcome.kind !== "reply") return failed(outcome.kind);
    const read = decodeAnswer(outcome.message.data);
    if (!read.ok) return failed(read.why);
    const answer = read.value;
    return isOurs(answer, source) ? answer : failed("an answer of another source");
  }
}

function isOurs(answer: ResidencyAnswer, { worker, rank }: ResidencySource): boolean {
  if (answer.kind === "refused") return true;
  const of = answer.kind === "range" ? answer.batch.source : answer.source;
  return of.worker === worker && of.rank === rank;
}

/** Where publishers of a cluster are asked. */
export function askedAt(cluster: string): (source: ResidencySource) => string {
  return ({ worker, rank }) => questionsSubject(cluster, { worker, rank });
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

/** Hands what publishers of a cluster say to `listener`, as long as it is not disposed. */
export class BusListening implements Disposable {
  readonly #subscription: { unsubscribe(): void };

  constructor(bus: Bus, cluster: string, listener: ResidencyListener, onRefused: () => void) {
    const subject = eventsSubject(cluster, ANY);
    this.#subscription = bus.subscribe(subject, (message) => {
      if (!takeResidency(message, listener)) onRefused();
    });
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
  }
}

/** False: it cannot be read, or is said of another than its subject names. */
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

/** A broker says who may publish where: what is said of another is not believed. */
function isOfItsOwn(message: ResidencyMessage, subject: string): boolean {
  const { source } = message.kind === "batch" ? message.batch : message.heartbeat;
  return subject.endsWith(`.${source.worker}.${source.rank}`);
}

/**
 * Reads the stream that the broker keeps of all events, from where this router was last time. What
 * came over the bus already is passed over by its number; what did not closes the gap. Heartbeats
 * that a stream kept are of the past, and count for nothing.
 */
export class StreamListening implements AsyncDisposable {
  readonly #consumption: Consumption;

  constructor(
    durable: DurableBus,
    cluster: string,
    /** Under this name the broker remembers where it was. */
    consumer: string,
    listener: ResidencyListener,
    onRefused: () => void,
  ) {
    const batches: ResidencyListener = {
      batch: (batch) => listener.batch(batch),
      heartbeat: () => undefined,
    };
    const stream = eventsStream(cluster);
    const subject = eventsSubject(cluster, ANY);
    this.#consumption = durable.consume({ stream, consumer, subject }, async (message) => {
      if (!takeResidency(message, batches)) onRefused();
    });
  }

  get state(): ConsumptionState {
    return this.#consumption.state;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#consumption[Symbol.asyncDispose]();
  }
}

/** Forgets what the broker keeps: the stream's events and the pictures. False: not all of it. */
export async function forgetStream(durable: DurableBus, cluster: string): Promise<boolean> {
  const subject = eventsSubject(cluster, ANY);
  const purged = await durable.purge(eventsStream(cluster), subject, Number.MAX_SAFE_INTEGER);
  const objects = durable.objects(snapshotBucket(cluster));
  const listed = await objects.list();
  const deleted = await Promise.all((listed ?? []).map(({ name }) => objects.delete(name)));
  return [purged, ...deleted].every(({ kind }) => kind === "done") && listed !== null;
}
