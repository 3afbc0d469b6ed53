import { readFile, rename, writeFile } from "node:fs/promises";
import {
  mixHash,
  RESIDENCY_TIERS,
  type ResidencyChange,
  type ResidencyDigest,
  type ResidencyTier,
} from "../../../src/observability/activity/index.ts";
import type {
  BlockHolder,
  HeldRun,
  IndexChange,
  PrefixBatch,
  PrefixIndex,
  PrefixIndexStats,
  PrefixMatches,
  TargetId,
} from "../../../src/router/index.ts";

interface Block {
  /** As reported when the block was first stored. */
  readonly parent: bigint | null;
  readonly holders: Set<number>;
}

/**
 * The index as its port says it, and nothing else: a map from each hash to its holders and a walk
 * for each target. Never forgets. The literal model of the native index; slow, for tests.
 */
export class ReferenceIndex implements PrefixIndex {
  readonly #blocks = new Map<bigint, Block>();

  get stats(): PrefixIndexStats {
    const blocks = [...this.#blocks.values()];
    return {
      blocks: blocks.length,
      heldBlocks: blocks.reduce((sum, { holders }) => sum + holders.size, 0),
      runs: blocks.length,
      bytes: 0,
      forgotten: 0,
    };
  }

  apply(changes: readonly IndexChange[]): void {
    for (const { target, change } of changes) this.#applyOne(target, change);
  }

  #applyOne(target: TargetId, change: ResidencyChange): void {
    if (change.kind === "stored") {
      const holder = holderOf(target, change.tier);
      let parent = change.parent;
      for (const hash of change.hashes) {
        const known = this.#blocks.get(hash);
        if (known) known.holders.add(holder);
        else this.#blocks.set(hash, { parent, holders: new Set([holder]) });
        parent = hash;
      }
    } else if (change.kind === "removed") {
      const holder = holderOf(target, change.tier);
      for (const hash of change.hashes) this.#remove(hash, holder);
    } else {
      const tiers = change.tier === null ? RESIDENCY_TIERS : [change.tier];
      for (const hash of [...this.#blocks.keys()]) {
        for (const tier of tiers) this.#remove(hash, holderOf(target, tier));
      }
    }
  }

  #remove(hash: bigint, holder: number): void {
    const block = this.#blocks.get(hash);
    if (block?.holders.delete(holder) && block.holders.size === 0) this.#blocks.delete(hash);
  }

  /** How many from `from` on the holder has without a gap. */
  #leading(hashes: BigUint64Array, from: number, holder: number): number {
    let at = from;
    while (at < hashes.length && this.#blocks.get(hashes[at]!)?.holders.has(holder)) at++;
    return at - from;
  }

  #matches(hashes: BigUint64Array): Match[] {
    const first = hashes.length === 0 ? undefined : this.#blocks.get(hashes[0]!);
    const targets = new Set([...(first?.holders ?? [])].map(targetOf));
    return [...targets]
      .sort((a, b) => a - b)
      .map((target) => {
        const device = this.#leading(hashes, 0, holderOf(target, "device"));
        const host = this.#leading(hashes, device, holderOf(target, "host"));
        const disk = this.#leading(hashes, device + host, holderOf(target, "disk"));
        return { target, device, host, disk };
      });
  }

  match(hashes: BigUint64Array): PrefixMatches {
    const matches = this.#matches(hashes);
    return { count: matches.length, exactBlocks: hashes.length, ...columnsOf(matches) };
  }

  matchMany(hashes: BigUint64Array, ends: Uint32Array): PrefixBatch {
    const prompts = [...ends].map((end, i) => hashes.subarray(ends[i - 1] ?? 0, end));
    const answers = prompts.map((prompt) => this.#matches(prompt));
    const all = answers.flat();
    let start = 0;
    return {
      starts: Uint32Array.from(answers, ({ length }) => {
        start += length;
        return start - length;
      }),
      counts: Uint32Array.from(answers, ({ length }) => length),
      exactBlocks: Uint32Array.from(prompts, ({ length }) => length),
      ...columnsOf(all),
    };
  }

  holders(hashes: BigUint64Array, max: number): BlockHolder[][] {
    return [...hashes].map((hash) => {
      const tiers = new Map<TargetId, number>();
      for (const holder of this.#blocks.get(hash)?.holders ?? []) {
        const target = targetOf(holder);
        tiers.set(target, (tiers.get(target) ?? 0) | (1 << (holder & 3)));
      }
      return [...tiers]
        .map(([target, bits]) => ({ target, tiers: bits }))
        .sort((a, b) => a.target - b.target)
        .slice(0, max);
    });
  }

  drop(target: TargetId): void {
    this.#applyOne(target, { kind: "cleared", tier: null });
  }

  digests(target: TargetId): ResidencyDigest[] {
    return RESIDENCY_TIERS.map((tier) => {
      const holder = holderOf(target, tier);
      const held = [...this.#blocks].filter(([, { holders }]) => holders.has(holder));
      return {
        blocks: held.length,
        mix: held.reduce((mix, [hash]) => mix ^ mixHash(hash), 0n),
      };
    });
  }

  *dump(target?: TargetId): Iterable<HeldRun> {
    for (const hash of this.#parentsFirst()) {
      const { parent, holders } = this.#blocks.get(hash)!;
      for (const holder of [...holders].sort((a, b) => a - b)) {
        if (target !== undefined && targetOf(holder) !== target) continue;
        const hashes = BigUint64Array.of(hash);
        yield { target: targetOf(holder), tier: tierOf(holder), parent, hashes };
      }
    }
  }

  /** Contradictory parents may form a ring; it begins anywhere then. */
  #parentsFirst(): Set<bigint> {
    const done = new Set<bigint>();
    for (const hash of this.#blocks.keys()) {
      const way: bigint[] = [];
      const seen = new Set<bigint>();
      let at: bigint | null = hash;
      while (at !== null && this.#blocks.has(at) && !done.has(at) && !seen.has(at)) {
        seen.add(at);
        way.push(at);
        at = this.#blocks.get(at)!.parent;
      }
      for (const block of way.reverse()) done.add(block);
    }
    return done;
  }

  save(path: string): Promise<void> {
    return writeRuns(path, this.dump());
  }

  async load(path: string): Promise<boolean> {
    const changes = await readRuns(path);
    this.apply(changes ?? []);
    return changes !== null;
  }

  [Symbol.dispose](): void {
    this.#blocks.clear();
  }
}

type Row = readonly [target: number, tier: ResidencyTier, parent: string | null, hashes: string[]];

function checksum(text: string): string {
  return Bun.hash.xxHash3(text).toString(16);
}

/** The reference index's own file: a checksum and JSON. */
async function writeRuns(path: string, runs: Iterable<HeldRun>): Promise<void> {
  const rows = [...runs].map(
    ({ target, tier, parent, hashes }): Row => [
      target,
      tier,
      parent?.toString() ?? null,
      [...hashes].map(String),
    ],
  );
  const text = JSON.stringify(rows);
  await writeFile(`${path}.new`, `${checksum(text)}\n${text}`);
  await rename(`${path}.new`, path);
}

/** As the changes that make it again; null where the file is not one or is damaged. */
async function readRuns(path: string): Promise<IndexChange[] | null> {
  const [sum, text] = (await readFile(path, "utf8").catch(() => "")).split("\n", 2);
  if (text === undefined || sum !== checksum(text)) return null;
  return (JSON.parse(text) as Row[]).map(([target, tier, parent, hashes]) => ({
    target: target as TargetId,
    change: {
      kind: "stored",
      tier,
      parent: parent === null ? null : BigInt(parent),
      hashes: BigUint64Array.from(hashes, BigInt),
      tokenHashes: null,
    },
  }));
}

/** A target and a tier in one number: what holds a block. Ordered by target, then by tier. */
function holderOf(target: TargetId, tier: ResidencyTier): number {
  return target * 4 + RESIDENCY_TIERS.indexOf(tier);
}

function targetOf(holder: number): TargetId {
  return (holder >>> 2) as TargetId;
}

function tierOf(holder: number): ResidencyTier {
  return RESIDENCY_TIERS[holder & 3]!;
}

/** The blocks of a prompt that one target has. */
interface Match {
  readonly target: TargetId;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

/** Matches in the port's columns. */
function columnsOf(matches: readonly Match[]) {
  return {
    targets: Uint16Array.from(matches, ({ target }) => target),
    device: Uint32Array.from(matches, ({ device }) => device),
    host: Uint32Array.from(matches, ({ host }) => host),
    disk: Uint32Array.from(matches, ({ disk }) => disk),
  };
}
