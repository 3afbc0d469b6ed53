import type { Bus, Subscription } from "../../../src/bus/index.ts";
import type { WorkerId } from "../../../src/core/index.ts";
import {
  decodeQuery,
  encodeAnswer,
  encodeBatch,
  encodeHeartbeat,
  eventsSubject,
  queriesSubject,
  type ResidencyAnswer,
  type ResidencyQuery,
  type ResidencyRun,
} from "../../../src/events/index.ts";
import {
  type KeySpace,
  mixHash,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyDigest,
  type ResidencyHeartbeat,
  type ResidencySource,
  type ResidencyTier,
} from "../../../src/observability/activity/index.ts";

export const CLUSTER = "test";
export const SPACE: KeySpace = { kind: "tokens", model: "m", blockTokens: 16 };

export interface ScriptedOptions {
  readonly worker: string;
  readonly rank?: number;
  readonly incarnation?: bigint;
  readonly everyMs?: number;
  /** Changes it can answer a range with. */
  readonly ring?: number;
  /** Blocks in one part of a snapshot. */
  readonly partBlocks?: number;
  readonly spaces?: readonly KeySpace[];
}

/** A publisher whose content is plain sets; tests choose its batches, which may be false. */
export class ScriptedWorker implements Disposable {
  readonly content = new Map<ResidencyTier, Set<bigint>>(
    RESIDENCY_TIERS.map((tier) => [tier, new Set<bigint>()]),
  );
  readonly questions: ResidencyQuery[] = [];
  readonly #bus: Bus;
  readonly #options: ScriptedOptions;
  readonly #subscription: Subscription;
  readonly #snapshots = new Map<bigint, ResidencyAnswer[]>();
  #changes: ResidencyChange[] = [];
  incarnation: bigint;
  isDeviceKnown = true;
  /** The answer sent instead; undefined: the true one; null: none. */
  instead: (question: ResidencyQuery) => ResidencyAnswer | null | undefined = () => undefined;

  constructor(bus: Bus, options: ScriptedOptions) {
    this.#bus = bus;
    this.#options = options;
    this.incarnation = options.incarnation ?? 1n;
    const of = { worker: options.worker as WorkerId, rank: options.rank ?? 0 };
    this.#subscription = bus.subscribe(queriesSubject(CLUSTER, of), ({ data, reply }) => {
      const read = decodeQuery(data);
      if (!read.ok || reply === null) return;
      this.questions.push(read.value);
      const instead = this.instead(read.value);
      const answer = instead === undefined ? this.#answer(read.value) : instead;
      if (answer !== null) bus.publish(reply, encodeAnswer(answer));
    });
  }

  get source(): ResidencySource {
    const { worker, rank = 0 } = this.#options;
    return { worker: worker as WorkerId, rank, incarnation: this.incarnation };
  }
  get sequence(): number {
    return this.#changes.length;
  }

  /** Changes its blocks; the batch is for `send`, now, later or never. */
  change(...changes: ResidencyChange[]): ResidencyBatch {
    const firstSequence = this.#changes.length + 1;
    for (const change of changes) this.#apply(change);
    this.#changes.push(...changes);
    return { source: this.source, firstSequence, changes };
  }

  store(tier: ResidencyTier, ...hashes: bigint[]): ResidencyBatch {
    return this.change(stored(tier, ...hashes));
  }

  remove(tier: ResidencyTier, ...hashes: bigint[]): ResidencyBatch {
    return this.change({ kind: "removed", tier, hashes: BigUint64Array.from(hashes) });
  }

  send(batch: ResidencyBatch): void {
    this.#bus.publish(eventsSubject(CLUSTER, this.source), encodeBatch(batch, 0));
  }

  beat(changed: Partial<ResidencyHeartbeat> = {}): void {
    const heartbeat = { ...this.heartbeat(), ...changed };
    this.#bus.publish(eventsSubject(CLUSTER, this.source), encodeHeartbeat(heartbeat, 0));
  }

  heartbeat(): ResidencyHeartbeat {
    return {
      source: this.source,
      lastSequence: this.sequence,
      mode: "ring",
      everyMs: this.#options.everyMs ?? 1_000,
      spaces: this.#options.spaces ?? [SPACE],
      digests: this.digests(),
      isDeviceKnown: this.isDeviceKnown,
      isClosing: false,
    };
  }

  digests(): ResidencyDigest[] {
    return RESIDENCY_TIERS.map((tier) => {
      const hashes = [...this.content.get(tier)!];
      return { blocks: hashes.length, mix: hashes.reduce((mix, hash) => mix ^ mixHash(hash), 0n) };
    });
  }

  /** Another run; its blocks appeared without events, as blocks on SSD do. */
  restart(): void {
    this.incarnation++;
    this.#changes = [];
    this.#snapshots.clear();
    for (const tier of ["device", "host"] as const) this.content.get(tier)!.clear();
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
  }

  #apply(change: ResidencyChange): void {
    if (change.kind === "cleared") {
      for (const tier of change.tier === null ? RESIDENCY_TIERS : [change.tier]) {
        this.content.get(tier)!.clear();
      }
      return;
    }
    const held = this.content.get(change.tier)!;
    for (const hash of change.hashes) {
      if (change.kind === "stored") held.add(hash);
      else held.delete(hash);
    }
  }

  #answer(question: ResidencyQuery): ResidencyAnswer {
    const { source } = this;
    const { incarnation } = question;
    if (incarnation !== null && incarnation !== source.incarnation) {
      return { kind: "other_incarnation", source };
    }
    return question.kind === "range" ? this.#range(question) : this.#part(question);
  }

  #range({ from, to }: ResidencyQuery & { kind: "range" }): ResidencyAnswer {
    const { source, sequence: lastSequence } = this;
    const firstSequence = Math.max(1, lastSequence + 1 - (this.#options.ring ?? 1_000));
    if (from > lastSequence) return { kind: "too_new", source, lastSequence };
    if (from < firstSequence) return { kind: "evicted", source, firstSequence, lastSequence };
    const changes = this.#changes.slice(from - 1, to ?? undefined);
    return { kind: "range", batch: { source, firstSequence: from, changes }, lastSequence };
  }

  #part({ snapshot, part }: ResidencyQuery & { kind: "snapshot" }): ResidencyAnswer {
    const number = snapshot ?? BigInt(this.#snapshots.size + 1);
    if (snapshot === null) this.#snapshots.set(number, this.#parts(number));
    return this.#snapshots.get(number)?.[part] ?? { kind: "no_snapshot", source: this.source };
  }

  #parts(snapshot: bigint): ResidencyAnswer[] {
    const parts: ResidencyRun[][] = [];
    const { partBlocks = 1_000 } = this.#options;
    for (const tier of RESIDENCY_TIERS) {
      const hashes = BigUint64Array.from(this.content.get(tier)!);
      for (let at = 0; at < hashes.length; at += partBlocks) {
        parts.push([{ tier, parent: null, hashes: hashes.subarray(at, at + partBlocks) }]);
      }
    }
    if (parts.length === 0) parts.push([]);
    return parts.map((runs, part) => ({
      kind: "snapshot" as const,
      source: this.source,
      isDeviceKnown: this.isDeviceKnown,
      ...{ snapshot, sequence: this.sequence, part, isLast: part === parts.length - 1, runs },
    }));
  }
}

export function stored(tier: ResidencyTier, ...hashes: bigint[]): ResidencyChange {
  const of = BigUint64Array.from(hashes);
  return { kind: "stored", tier, parent: null, hashes: of, tokenHashes: null };
}
