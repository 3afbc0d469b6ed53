import type { WorkerId } from "../../../src/core/index.ts";
import {
  mixHash,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyHeartbeat,
  type ResidencySource,
  type ResidencyTier,
} from "../../../src/observability/activity/index.ts";
import type { RangeAnswer, SourceSnapshot } from "../../../src/router/ingest/index.ts";
import { SPACE } from "./scripted-worker.ts";

export type LiteralChange =
  | { readonly kind: "store" | "remove"; readonly tier: ResidencyTier; readonly hash: number }
  | { readonly kind: "clear" };

/** Changes it can still tell. */
const RING = 6;

/** Plain sets, a list of changes, and a wire on which batches wait. */
export class LiteralWorker {
  readonly wire: ResidencyBatch[] = [];
  readonly #name: string;
  #sets = RESIDENCY_TIERS.map(() => new Set<bigint>());
  #changes: ResidencyChange[] = [];
  #incarnation = 1n;

  constructor(name: string) {
    this.#name = name;
  }

  get source(): ResidencySource {
    return { worker: this.#name as WorkerId, rank: 0, incarnation: this.#incarnation };
  }

  change(of: { readonly kind: string; readonly tier?: ResidencyTier; readonly hash?: number }) {
    const hash = BigInt(of.hash ?? 0);
    const hashes = BigUint64Array.of(hash);
    const tier = of.tier ?? "device";
    const set = this.#sets[RESIDENCY_TIERS.indexOf(tier)]!;
    if (of.kind === "store") {
      set.add(hash);
      this.#tell({ kind: "stored", tier, parent: null, hashes, tokenHashes: null });
    } else if (of.kind === "remove") {
      set.delete(hash);
      this.#tell({ kind: "removed", tier, hashes });
    } else {
      for (const one of this.#sets) one.clear();
      this.#tell({ kind: "cleared", tier: null });
    }
  }

  carry(how: string, deliver: (batch: ResidencyBatch) => void): void {
    const batch = this.wire.shift();
    if (batch === undefined || how === "lose") return;
    deliver(batch);
    if (how === "double") deliver(batch);
  }

  /** Batches in flight still arrive; the SSD's blocks are present again, without events. */
  restart(): void {
    this.#incarnation++;
    this.#changes = [];
    for (const set of this.#sets.slice(0, 2)) set.clear();
  }

  heartbeat(): ResidencyHeartbeat {
    return {
      source: this.source,
      lastSequence: this.#changes.length,
      ...{ mode: "ring", everyMs: 1_000, spaces: [SPACE], isClosing: false },
      isDeviceKnown: true,
      digests: this.#sets.map((set) => ({
        blocks: set.size,
        mix: [...set].reduce((mix, hash) => mix ^ mixHash(hash), 0n),
      })),
    };
  }

  snapshot(): SourceSnapshot {
    const runs = this.#sets.map((set, at) => {
      return { tier: RESIDENCY_TIERS[at]!, parent: null, hashes: BigUint64Array.from(set) };
    });
    return { source: this.source, sequence: this.#changes.length, isDeviceKnown: true, runs };
  }

  range(incarnation: bigint, from: number): RangeAnswer {
    const isOld = from < this.#changes.length + 1 - RING;
    if (incarnation !== this.#incarnation || isOld) return { kind: "too_old" };
    const changes = this.#changes.slice(from - 1);
    const batches = changes.length === 0 ? [] : [this.#batch(from, changes)];
    return { kind: "changes", batches };
  }

  #tell(change: ResidencyChange): void {
    this.#changes.push(change);
    this.wire.push(this.#batch(this.#changes.length, [change]));
  }

  #batch(firstSequence: number, changes: readonly ResidencyChange[]): ResidencyBatch {
    return { source: this.source, firstSequence, changes };
  }
}
