import {
  BlockOutcome,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
  yieldToLoop,
} from "../core/index.ts";
import { type AddressBatch, hasParent } from "./batches.ts";
import { type BlockTable, isRefusal, Tier } from "./blocks/index.ts";

/** Entries removed before the event loop is yielded to: about a millisecond of work. */
const FORGOTTEN_A_SLICE = 4096;

/**
 * Blocks in the GPU memory of engines, as the engines report them. Keeps the latest reports, up to
 * a limit for all engines together. At the limit the engine's oldest report is dropped, so a block
 * may be missing here, but a listed block is in GPU memory.
 */
export class GpuMirror {
  readonly #table: BlockTable;
  readonly #blocksMax: number;
  #blocks = 0;

  constructor(table: BlockTable, blocksMax: number) {
    this.#table = table;
    this.#blocksMax = blocksMax;
  }

  /**
   * Creates the report list of one engine, in order of arrival. A node in a list is not removed
   * from the block table.
   */
  openWindow(): Set<NodeId> {
    return new Set();
  }

  stored(
    window: Set<NodeId>,
    namespace: NamespaceIndex,
    batch: AddressBatch,
    index: number,
  ): { readonly outcome: number; readonly node: NodeId } {
    if (this.#blocksMax === 0) return { outcome: BlockOutcome.ok, node: NO_NODE };
    const known = this.#table.find(batch.keys, index * 8);
    if (known !== NO_NODE && window.has(known))
      return { outcome: BlockOutcome.present, node: known };
    while (this.#blocks >= this.#blocksMax) {
      const oldest = window.values().next();
      if (oldest.done) return { outcome: BlockOutcome.full, node: NO_NODE };
      this.#forget(window, oldest.value);
    }
    const parent = hasParent(batch, index);
    const node = this.#table.insertResident(batch, index, namespace, parent, Tier.gpu);
    if (isRefusal(node)) return { outcome: BlockOutcome.full, node: NO_NODE };
    window.add(node);
    this.#blocks++;
    return { outcome: BlockOutcome.ok, node };
  }

  evicted(window: Set<NodeId>, batch: AddressBatch, index: number): number {
    const node = this.#table.find(batch.keys, index * 8);
    if (node === NO_NODE || !window.has(node)) return BlockOutcome.miss;
    this.#forget(window, node);
    return BlockOutcome.ok;
  }

  /**
   * Adds a block of the block table to an engine's report list. Does nothing if the list contains
   * it.
   */
  hold(window: Set<NodeId>, node: NodeId): void {
    if (this.#blocksMax === 0 || window.has(node)) return;
    while (this.#blocks >= this.#blocksMax) {
      const oldest = window.values().next();
      if (oldest.done) return;
      this.#forget(window, oldest.value);
    }
    if (!this.#table.addGpuHolder(node)) return;
    window.add(node);
    this.#blocks++;
  }

  letGo(window: Set<NodeId>, node: NodeId): void {
    if (window.has(node)) this.#forget(window, node);
  }

  /** Removes all reports of an engine that has disconnected, in slices. */
  closeWindow(window: Set<NodeId>): void {
    let forgotten = 0;
    for (const node of window) {
      this.#forget(window, node);
      if (++forgotten < FORGOTTEN_A_SLICE) continue;
      // Yield to the event loop between slices.
      void yieldToLoop().then(() => this.closeWindow(window));
      return;
    }
  }

  #forget(window: Set<NodeId>, node: NodeId): void {
    window.delete(node);
    this.#blocks--;
    this.#table.removeGpuHolder(node);
  }
}
