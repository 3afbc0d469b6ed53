import type { Bus } from "../../../src/bus/index.ts";
import type { WorkerId } from "../../../src/core/index.ts";
import {
  decodeAnswer,
  decodeResidencyMessage,
  encodeQuestion,
  eventsSubject,
  questionsSubject,
  type ResidencyAnswer,
  type ResidencyQuestion,
  type ResidencySnapshotPart,
} from "../../../src/events/index.ts";
import {
  mixHash,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyDigest,
  type ResidencyHeartbeat,
  type ResidencyTier,
} from "../../../src/observability/activity/index.ts";
import { applyChange } from "../../store/residency/follower.ts";

export type Sets = Record<ResidencyTier, Set<bigint>>;

export const emptySets = (): Sets => ({ device: new Set(), host: new Set(), disk: new Set() });

export function digestsOf(sets: Sets): ResidencyDigest[] {
  return RESIDENCY_TIERS.map((tier) => ({
    blocks: sets[tier].size,
    mix: [...sets[tier]].reduce((mix, hash) => mix ^ mixHash(hash), 0n),
  }));
}

/** A consumer as plain as can be: live changes in order, and questions where one is missing. */
export class Consumer implements Disposable {
  readonly sets = emptySets();
  readonly heartbeats: ResidencyHeartbeat[] = [];
  readonly refused: string[] = [];
  sequence = 0;
  incarnation = 0n;
  batches = 0;
  gaps = 0;
  readonly #bus: Bus;
  readonly #cluster: string;
  readonly #of: { readonly worker: WorkerId; readonly rank: number };
  readonly #end: { unsubscribe(): void };

  constructor(bus: Bus, cluster: string, worker: WorkerId, rank = 0) {
    this.#bus = bus;
    this.#cluster = cluster;
    this.#of = { worker, rank };
    this.#end = bus.subscribe(eventsSubject(cluster, this.#of), ({ data }) => this.take(data));
  }

  /** Also what a stream has kept. */
  take(data: Uint8Array): void {
    const read = decodeResidencyMessage(data);
    if (!read.ok) this.refused.push(read.why);
    else if (read.value.kind === "heartbeat") {
      this.heartbeats.push(read.value.heartbeat);
      this.#meet(read.value.heartbeat.source.incarnation);
    } else this.apply(read.value.batch);
  }

  apply(batch: ResidencyBatch): void {
    const { source, firstSequence, changes } = batch;
    this.#meet(source.incarnation);
    this.batches++;
    if (firstSequence > this.sequence + 1) {
      this.gaps++;
      return;
    }
    changes.forEach((change, i) => {
      if (firstSequence + i !== this.sequence + 1) return;
      applyChange(this.sets, change);
      this.sequence++;
    });
  }

  async ask(question: ResidencyQuestion): Promise<ResidencyAnswer> {
    return this.askBytes(encodeQuestion(question));
  }

  async askBytes(bytes: Uint8Array): Promise<ResidencyAnswer> {
    const subject = questionsSubject(this.#cluster, this.#of);
    const outcome = await this.#bus.request(subject, bytes, { timeoutMs: 5_000 });
    if (outcome.kind !== "reply") throw new Error(outcome.kind);
    const read = decodeAnswer(outcome.message.data);
    if (!read.ok) throw new Error(read.why);
    return read.value;
  }

  /** All that is missing, by ranges; or all of it where they are not kept any more. */
  async catchUp(): Promise<void> {
    while (true) {
      const question = { incarnation: null, from: this.sequence + 1, to: null };
      const answer = await this.ask({ kind: "range", ...question });
      if (answer.kind === "too_new") return;
      if (answer.kind === "evicted") await this.snapshot();
      else if (answer.kind !== "range") throw new Error(answer.kind);
      else this.apply(answer.batch);
    }
  }

  /** All that is held, from its beginning. */
  async snapshot(): Promise<ResidencySnapshotPart[]> {
    const parts: ResidencySnapshotPart[] = [];
    while (parts.at(-1)?.isLast !== true) {
      const snapshot = parts[0]?.snapshot ?? null;
      const part = parts.length;
      const answer = await this.ask({ kind: "snapshot", incarnation: null, snapshot, part });
      if (answer.kind !== "snapshot") throw new Error(answer.kind);
      parts.push(answer);
    }
    this.replace(parts);
    return parts;
  }

  replace(parts: readonly ResidencySnapshotPart[]): void {
    this.#begin(parts[0]!.sequence);
    this.incarnation = parts[0]!.source.incarnation;
    for (const { runs } of parts) {
      for (const { tier, hashes } of runs) for (const hash of hashes) this.sets[tier].add(hash);
    }
  }

  /** Whether it has what a heartbeat from now on says. */
  agreesWith({ lastSequence }: { readonly lastSequence: number }): boolean {
    const latest = this.heartbeats.at(-1);
    const isThere = latest?.lastSequence === lastSequence && this.sequence === lastSequence;
    return isThere && Bun.deepEquals(latest.digests, digestsOf(this.sets));
  }

  [Symbol.dispose](): void {
    this.#end.unsubscribe();
  }

  /** Another run begins with nothing. */
  #meet(incarnation: bigint): void {
    if (incarnation === this.incarnation) return;
    this.incarnation = incarnation;
    this.#begin(0);
  }

  #begin(sequence: number): void {
    for (const tier of RESIDENCY_TIERS) this.sets[tier].clear();
    this.sequence = sequence;
  }
}
