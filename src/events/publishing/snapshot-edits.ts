import { yieldToLoop } from "../../core/index.ts";
import {
  RESIDENCY_TIERS,
  type ResidencyChange,
  type ResidencyTier,
} from "../../observability/activity/index.ts";
import type { ResidencyRun } from "../index.ts";
import { Chains } from "./held-chains.ts";

/** More changes than this while a picture is taken, and it is not worth going on. */
const BLOCKS_MAX = 2 ** 20;
/** Blocks looked at before other work gets its turn. */
const LOOKS_A_SLICE = 65_536;

type Edited = Map<bigint, { readonly parent: bigint | null } | null>;

/** What happened to blocks while a picture was taken: what each of them is at the end. */
export class SnapshotEdits {
  readonly #tiers = new Map<ResidencyTier, Edited>(
    RESIDENCY_TIERS.map((tier) => [tier, new Map()]),
  );
  #blocks = 0;
  #isCleared = false;

  /** It has to be taken anew. */
  get isTooMuch(): boolean {
    return this.#isCleared || this.#blocks > BLOCKS_MAX;
  }

  note(changes: readonly ResidencyChange[]): void {
    for (const change of changes) {
      if (change.kind === "cleared") this.#isCleared = true;
      else if (!this.isTooMuch) this.#noteBlocks(change);
    }
  }

  #noteBlocks(change: Exclude<ResidencyChange, { kind: "cleared" }>): void {
    const edited = this.#tiers.get(change.tier)!;
    this.#blocks += change.hashes.length;
    let parent = change.kind === "stored" ? change.parent : null;
    for (const hash of change.hashes) {
      edited.set(hash, change.kind === "stored" ? { parent } : null);
      parent = hash;
    }
  }

  /** The runs without what changed meanwhile, then what that is now. */
  async *applyTo(runs: readonly ResidencyRun[]): AsyncGenerator<ResidencyRun> {
    let looks = 0;
    for (const run of runs) {
      const edited = this.#tiers.get(run.tier)!;
      yield* edited.size === 0 ? [run] : without(run, edited);
      looks += run.hashes.length;
      if (looks < LOOKS_A_SLICE) continue;
      looks = 0;
      await yieldToLoop();
    }
    for (const [tier, edited] of this.#tiers) {
      const chains = new Chains(tier);
      for (const [hash, now] of edited) if (now !== null) chains.add(hash, now.parent);
      for (const change of chains.done()) if (change.kind === "stored") yield change;
    }
  }
}

function* without(run: ResidencyRun, edited: Edited): Generator<ResidencyRun> {
  const { tier, hashes } = run;
  const part = (from: number, end: number): ResidencyRun => {
    const parent = from === 0 ? run.parent : hashes[from - 1]!;
    return { tier, parent, hashes: hashes.subarray(from, end) };
  };
  let from = 0;
  for (let at = 0; at < hashes.length; at++) {
    if (!edited.has(hashes[at]!)) continue;
    if (at > from) yield part(from, at);
    from = at + 1;
  }
  if (from < hashes.length) yield from === 0 ? run : part(from, hashes.length);
}
