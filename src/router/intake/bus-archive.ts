import type { Bus } from "../../bus/index.ts";
import {
  decodeAnswer,
  encodeQuestion,
  questionsSubject,
  type ResidencyAnswer,
  type ResidencyQuestion,
  type ResidencyRun,
  type ResidencySnapshotPart,
} from "../../events/index.ts";
import type { ResidencyBatch, ResidencySource } from "../../observability/activity/index.ts";
import type { PictureAnswer, RangeAnswer, ResidencyArchive } from "./feed.ts";
import { lastOf } from "./pending.ts";

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
