import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { ResidencyChange } from "../../observability/activity/index.ts";
import type { TieredStore } from "../../store/index.ts";
import type { EngineChange, TokenBook } from "./token-book.ts";

/**
 * Mirrors what an engine's own events say of its GPU, for blocks that this host has: whichever of
 * the two is known first.
 */
export class EngineMirror implements Disposable {
  readonly #store: Pick<TieredStore, "table" | "mirror">;
  readonly #book: TokenBook;
  readonly #window: Set<NodeId>;
  /** Sequence hashes of blocks on the GPU, with the nodes that stand for them here. */
  readonly #onDevice = new Map<bigint, NodeId[]>();

  readonly #blocksMax: number;

  constructor(store: Pick<TieredStore, "table" | "mirror">, book: TokenBook, blocksMax: number) {
    this.#blocksMax = blocksMax;
    this.#store = store;
    this.#book = book;
    this.#window = store.mirror.openWindow();
  }

  /** Blocks that are mirrored now. */
  get size(): number {
    return this.#window.size;
  }

  /** The book has learnt them already. */
  engine(changes: readonly EngineChange[]): void {
    for (const { change } of changes) {
      if (change.tier !== "device" && change.tier !== null) continue;
      if (change.kind === "cleared") this.#clear();
      else if (change.kind === "removed") for (const hash of change.hashes) this.#remove(hash);
      else for (const hash of change.hashes) this.#add(hash);
    }
  }

  /** Of this host's store. */
  store(changes: readonly ResidencyChange[]): void {
    for (const change of changes) {
      if (change.kind !== "stored" || change.tier === "device") continue;
      for (const key of change.hashes) {
        const known = this.#book.findKey(key);
        if (known !== null && this.#onDevice.has(known.sequence)) this.#add(known.sequence);
      }
    }
  }

  [Symbol.dispose](): void {
    this.#clear();
  }

  #add(sequence: bigint): void {
    const { table, mirror } = this.#store;
    if (this.#book.find(sequence) === null) return;
    const nodes = this.#onDevice.get(sequence) ?? [];
    for (const key of this.#book.keysOf(sequence)) {
      const node = table.find(key, 0);
      if (node === NO_NODE || table.residencyOf(node) === 0 || this.#window.has(node)) continue;
      mirror.hold(this.#window, node);
      nodes.push(node);
    }
    const isNew = !this.#onDevice.has(sequence);
    if (isNew && this.#onDevice.size >= this.#blocksMax) return;
    this.#onDevice.set(sequence, nodes);
  }

  #remove(sequence: bigint): void {
    for (const node of this.#onDevice.get(sequence) ?? []) {
      this.#store.mirror.letGo(this.#window, node);
    }
    this.#onDevice.delete(sequence);
  }

  #clear(): void {
    this.#onDevice.clear();
    this.#store.mirror.closeWindow(this.#window);
  }
}
