import type { Bus } from "../../../src/bus/index.ts";
import {
  LAYER_ALL,
  type NamespaceIndex,
  type NodeId,
  type Random,
  randomBelow,
  seededRandom,
  type WorkerId,
} from "../../../src/core/index.ts";
import {
  decodeAnswer,
  decodeResidencyMessage,
  encodeQuery,
  eventsSubject,
  queriesSubject,
  type ResidencyAnswer,
  type ResidencyQuery,
  type ResidencySnapshotPart,
} from "../../../src/events/index.ts";
import { HostResidency, type HostResidencyOptions } from "../../../src/events/publishing/index.ts";
import {
  type KeySpace,
  mixHash,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyDigest,
  type ResidencyHeartbeat,
  type ResidencyTier,
} from "../../../src/observability/activity/index.ts";
import { BlockTable, Tier } from "../../../src/store/blocks/index.ts";
import { createAddressBatch, StoreResidency } from "../../../src/store/index.ts";
import { applyChange } from "../../store/residency/follower.ts";

export const WORKER = "gpu-01" as WorkerId;
export const CLUSTER = "test.cluster";

const BITS = { device: Tier.gpu, host: Tier.ram, disk: Tier.ssd } as const;
const TIERS = ["device", "host", "disk"] as const;

/** A table whose blocks the test adds and removes, without data. */
export class Blocks {
  readonly table: BlockTable;
  readonly residency: StoreResidency;
  readonly sets: Sets = emptySets();
  readonly #batch = createAddressBatch(1);
  readonly #random: Random;

  constructor(nodesMax = 4_096, seed = 1, blocksMax?: number) {
    this.#random = seededRandom(seed);
    this.table = new BlockTable({
      nodesMax,
      random: this.#random,
      onResidency: (node, tier, on) => this.residency.noted(node, tier, on),
    });
    this.residency = new StoreResidency(this.table, blocksMax);
    this.#batch.count = 1;
    this.#batch.layer = LAYER_ALL;
  }

  /** Block `id` after block `parent`, on a tier. */
  store(id: number, parent: number | null, tier: ResidencyTier): void {
    const batch = this.#batch;
    batch.keys.set(keyOf(id));
    if (parent !== null) batch.parentKeys.set(keyOf(parent));
    const known = this.table.find(batch.keys, 0);
    if (known !== 0 && this.table.isResident(known, BITS[tier])) return;
    const of = 1 as NamespaceIndex;
    this.table.insertResident(batch, 0, of, parent !== null, BITS[tier]);
    this.sets[tier].add(hashOf(id));
  }

  remove(id: number, tier: ResidencyTier): void {
    this.#batch.keys.set(keyOf(id));
    const node = this.table.find(this.#batch.keys, 0);
    if (node === 0 || !this.table.isResident(node, BITS[tier])) return;
    if (tier === "device") this.table.removeGpuHolder(node as NodeId);
    else this.table.removeResidency(node as NodeId, BITS[tier]);
    this.sets[tier].delete(hashOf(id));
  }

  /** Some changes of one of `ids` blocks, in chains of ten. */
  churn(count: number, ids = 1_000): void {
    for (let i = 0; i < count; i++) {
      const id = 1 + randomBelow(this.#random, ids);
      const tier = TIERS[randomBelow(this.#random, 3)]!;
      if (randomBelow(this.#random, 5) < 3) this.store(id, id % 10 === 0 ? null : id - 1, tier);
      else this.remove(id, tier);
    }
  }

  /** A chain of `count` blocks. */
  chain(from: number, count: number, tier: ResidencyTier): void {
    for (let i = 0; i < count; i++) this.store(from + i, i === 0 ? null : from + i - 1, tier);
  }
}

/** Words of a block's key, with unique beginnings. */
function keyOf(id: number): Uint32Array {
  return Uint32Array.from({ length: 8 }, (_, i) => Math.imul(id, 0x9e3779b1 + 2 * i) >>> 0);
}

export function hashOf(id: number): bigint {
  const [lo, hi] = keyOf(id);
  return (BigInt(hi!) << 32n) | BigInt(lo!);
}

export const SPACE: KeySpace = {
  kind: "blocks",
  model: "m",
  blockTokens: 16,
  namespaceKey: new Uint8Array(32).fill(7),
};

export const TOKENS: KeySpace = { kind: "tokens", model: "m", blockTokens: 16 };

export function feedsOf(
  blocks: Pick<Blocks, "residency">,
  options: Partial<HostResidencyOptions> = {},
): HostResidency {
  return new HostResidency({
    worker: WORKER,
    incarnation: 1n,
    ranks: [0],
    residency: blocks.residency,
    ring: { changesMax: 10_000, blocksMax: 100_000 },
    mode: "ring",
    everyMs: 50,
    engineBlocksMax: 1_000,
    hasEngines: false,
    spaces: () => [SPACE],
    ...options,
  });
}

type Sets = Record<ResidencyTier, Set<bigint>>;

export const emptySets = (): Sets => ({ device: new Set(), host: new Set(), disk: new Set() });

export function digestsOf(sets: Sets): ResidencyDigest[] {
  return RESIDENCY_TIERS.map((tier) => ({
    blocks: sets[tier].size,
    mix: [...sets[tier]].reduce((mix, hash) => mix ^ mixHash(hash), 0n),
  }));
}

/** A minimal consumer: applies live changes in order, and queries missing ones. */
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

  /** Also reads the messages kept by a stream. */
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

  async ask(question: ResidencyQuery): Promise<ResidencyAnswer> {
    return this.askBytes(encodeQuery(question));
  }

  async askBytes(bytes: Uint8Array): Promise<ResidencyAnswer> {
    const subject = queriesSubject(this.#cluster, this.#of);
    const outcome = await this.#bus.request(subject, bytes, { timeoutMs: 5_000 });
    if (outcome.kind !== "reply") throw new Error(outcome.kind);
    const read = decodeAnswer(outcome.message.data);
    if (!read.ok) throw new Error(read.why);
    return read.value;
  }

  /** Queries all missing changes as ranges; if they are no longer kept, the whole state. */
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

  /** Queries the whole state from its beginning. */
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

  /** Whether it has the state of a later heartbeat. */
  agreesWith({ lastSequence }: { readonly lastSequence: number }): boolean {
    const latest = this.heartbeats.at(-1);
    const isThere = latest?.lastSequence === lastSequence && this.sequence === lastSequence;
    return isThere && Bun.deepEquals(latest.digests, digestsOf(this.sets));
  }

  [Symbol.dispose](): void {
    this.#end.unsubscribe();
  }

  /** Another run starts with an empty state. */
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
