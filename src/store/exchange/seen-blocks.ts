import type { NamespaceIndex } from "../../core/index.ts";

/** Pairs of namespace and layer whose length is remembered; the first seen is forgotten. */
const LENGTHS_MAX = 16_384;

/** What is remembered of blocks that came to this host, by namespace. */
export class SeenBlocks {
  readonly #changes: number[] = [];
  readonly #lengths = new Map<number, number>();

  came(namespace: NamespaceIndex, layer: number, bytes: number): void {
    this.#changes[namespace] = this.changesOf(namespace) + 1;
    this.learn(namespace, layer, bytes);
  }

  /** How long blocks of the kind are, from one that was here before. */
  learn(namespace: NamespaceIndex, layer: number, bytes: number): void {
    const pair = pairOf(namespace, layer);
    if (this.#lengths.get(pair) === bytes) return;
    if (this.#lengths.size === LENGTHS_MAX && !this.#lengths.has(pair)) {
      this.#lengths.delete(this.#lengths.keys().next().value!);
    }
    this.#lengths.set(pair, bytes);
  }

  /** Blocks of the namespace that came so far. */
  changesOf(namespace: NamespaceIndex): number {
    return this.#changes[namespace] ?? 0;
  }

  /** Bytes of the block of this kind that was seen last; 0: none was. */
  bytesOf(namespace: NamespaceIndex, layer: number): number {
    return this.#lengths.get(pairOf(namespace, layer)) ?? 0;
  }
}

/** Below 2^48. */
function pairOf(namespace: NamespaceIndex, layer: number): number {
  return namespace * 2 ** 32 + (layer >>> 0);
}
