/** The prefix index, said as plainly as can be: who has which block, and a walk from the front. */
export type Tier = "device" | "host" | "disk";
const TIERS: readonly Tier[] = ["device", "host", "disk"];

export interface Overlap {
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

export class LiteralIndex {
  readonly #held = new Map<string, Set<bigint>>();

  #set(target: number, tier: Tier): Set<bigint> {
    const key = `${target} ${tier}`;
    const found = this.#held.get(key) ?? new Set();
    this.#held.set(key, found);
    return found;
  }

  store(target: number, tier: Tier, hashes: Iterable<bigint>): void {
    for (const hash of hashes) this.#set(target, tier).add(hash);
  }

  remove(target: number, tier: Tier, hashes: Iterable<bigint>): void {
    for (const hash of hashes) this.#set(target, tier).delete(hash);
  }

  clear(target: number, tier: Tier | null): void {
    for (const one of tier === null ? TIERS : [tier]) this.#set(target, one).clear();
  }

  overlap(target: number, hashes: readonly bigint[]): Overlap {
    const counts = { device: 0, host: 0, disk: 0 };
    let at = 0;
    for (const tier of TIERS) {
      while (at < hashes.length && this.#set(target, tier).has(hashes[at]!)) {
        counts[tier]++;
        at++;
      }
    }
    return counts;
  }

  blocks(target: number, tier: Tier): ReadonlySet<bigint> {
    return this.#set(target, tier);
  }
}
