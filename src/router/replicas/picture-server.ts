import type { Bus, BusMessage, Subscription } from "../../bus/index.ts";
import { type Clock, isWorkerId, type Random } from "../../core/index.ts";
import {
  decodeQuestion,
  encodeAnswer,
  type ResidencyAnswer,
  type ResidencyQuestion,
  type ResidencyRun,
  snapshotParts,
} from "../../events/index.ts";
import type { ResidencySource } from "../../observability/activity/index.ts";
import type { FollowedSource, ResidencyIntake } from "../intake/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";

export interface PictureServerOptions {
  readonly bus: Bus;
  readonly clock: Clock;
  readonly random: Random;
  readonly index: PrefixIndex;
  readonly intake: ResidencyIntake;
  /** With `*` for worker and rank. */
  readonly subject: string;
}

interface Kept {
  readonly source: ResidencySource;
  readonly sequence: number;
  readonly isDeviceKnown: boolean;
  readonly parts: readonly (readonly ResidencyRun[])[];
  askedMs: number;
}

/** Pictures that are read at a time; the next asker waits, or asks the worker. */
const KEPT_MAX = 4;
/** A picture that nobody has read on for so long is forgotten. */
const KEPT_MS = 5_000;
const RETRY_MS = 500;
const PART_BYTES_MAX = 512 * 1024;

/**
 * Gives other routers what this one has of a worker, in the words in which publishers give it:
 * who joins late need not ask each worker.
 */
export class PictureServer implements Disposable {
  readonly #options: PictureServerOptions;
  readonly #subscription: Subscription;
  readonly #kept = new Map<bigint, Kept>();
  served = 0;

  constructor(options: PictureServerOptions) {
    this.#options = options;
    this.#subscription = options.bus.subscribe(options.subject, (message) => this.#take(message));
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
    this.#kept.clear();
  }

  #take({ subject, data, reply }: BusMessage): void {
    if (reply === null) return;
    const [rank, worker] = subject.split(".").reverse();
    const question = decodeQuestion(data);
    if (!question.ok || worker === undefined || !isWorkerId(worker)) return;
    const followed = this.#options.intake.find(worker, Number(rank));
    const answer = this.#answer(question.value, followed);
    this.#options.bus.publish(reply, encodeAnswer(answer));
  }

  #answer(question: ResidencyQuestion, followed: FollowedSource | null): ResidencyAnswer {
    if (followed === null) return { kind: "refused", why: "that worker is not followed here" };
    const { source } = followed;
    const { incarnation } = question;
    if (incarnation !== null && incarnation !== source.incarnation) {
      return { kind: "other_incarnation", source };
    }
    if (question.kind === "range") return { kind: "refused", why: "ranges are not kept here" };
    if (question.snapshot !== null) return this.#part(question.snapshot, question.part, source);
    if (!followed.isKnown) return { kind: "refused", why: "it is not known here" };
    return this.#begin(followed);
  }

  #begin({ source, target, sequence, isDeviceKnown }: FollowedSource): ResidencyAnswer {
    const { clock, random, index } = this.#options;
    const nowMs = clock.monotonicMs();
    for (const [id, { askedMs }] of this.#kept) {
      if (nowMs - askedMs > KEPT_MS) this.#kept.delete(id);
    }
    if (this.#kept.size >= KEPT_MAX) return { kind: "busy", source, retryMs: RETRY_MS };
    const snapshot = (BigInt(random.u32()) << 32n) | BigInt(random.u32());
    const bytesMax = Math.min(PART_BYTES_MAX, this.#options.bus.payloadBytesMax);
    const runs = Array.from(index.dump(target), ({ tier, parent, hashes }) => {
      return { tier, parent, hashes: hashes.slice() };
    });
    const parts = [...snapshotParts(runs, bytesMax)];
    this.#kept.set(snapshot, { source, sequence, isDeviceKnown, parts, askedMs: nowMs });
    this.served++;
    return this.#part(snapshot, 0, source);
  }

  #part(snapshot: bigint, part: number, now: ResidencySource): ResidencyAnswer {
    const kept = this.#kept.get(snapshot);
    const runs = kept?.parts[part];
    if (kept === undefined || runs === undefined) return { kind: "no_snapshot", source: now };
    kept.askedMs = this.#options.clock.monotonicMs();
    const isLast = part === kept.parts.length - 1;
    if (isLast) this.#kept.delete(snapshot);
    const { source, sequence, isDeviceKnown } = kept;
    return { kind: "snapshot", source, snapshot, sequence, part, isLast, isDeviceKnown, runs };
  }
}
