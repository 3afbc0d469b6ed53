import { BlockOutcome, type NamespaceIndex, type NodeId } from "../core/index.ts";
import type { HandleBatch } from "./batches.ts";
import type { Hold } from "./hold.ts";
import type { TieredStore } from "./tiered-store.ts";

/** The slots that one engine connection holds, and how many it may. */
export class HeldSlots {
  readonly store: TieredStore;
  readonly namespace: NamespaceIndex;
  /** Blocks on their way for this holder, each of which takes a handle when it is here. */
  coming = 0;
  readonly #max: number;
  /** By slot: a slot is either written by this holder or read by it. */
  readonly #holds = new Map<number, Hold>();
  /** Half-written slots of a connection that is gone. */
  readonly #quarantined: number[] = [];
  #held = 0;

  constructor(store: TieredStore, namespace: NamespaceIndex, max: number) {
    this.store = store;
    this.namespace = namespace;
    this.#max = max;
  }

  get count(): number {
    return this.#held + this.coming + this.#quarantined.length;
  }

  /** Whether one more may be held. */
  get hasRoom(): boolean {
    return this.count < this.#max;
  }

  /** The hold behind handle `i`. */
  find(handles: HandleBatch, i: number): Hold | null {
    const hold = this.#holds.get(handles.slot[i]!);
    return hold?.generation === handles.generation[i]! ? hold : null;
  }

  /** The same where it is a slot still to be written. */
  written(handles: HandleBatch, i: number): Hold | null {
    const hold = this.find(handles, i);
    return hold?.writing && !hold.committing ? hold : null;
  }

  keep(hold: Hold): void {
    this.#holds.set(hold.slot, hold);
    this.#held++;
  }

  forget(hold: Hold): void {
    this.#holds.delete(hold.slot);
    this.#held--;
  }

  /** The node of a write that came to nothing may vanish. */
  dropWriter(hold: Hold): void {
    const { table, stats } = this.store;
    stats.abortedBlocks++;
    table.endWrite(hold.node);
    table.unlock(hold.node);
  }

  /** Hands out a block that is in RAM, as block `i` of the answer. */
  grant(node: NodeId, i: number, out: HandleBatch): number {
    const { table, slots } = this.store;
    if (!this.hasRoom || !table.lock(node)) return BlockOutcome.rejected;
    const slot = table.slotOf(node);
    const generation = table.slotGenerationOf(node);
    const bytes = table.bytesOf(node);
    const offset = slots.offsetOf(slot);
    const hold = this.#holds.get(slot);
    if (hold !== undefined) hold.reads++;
    else {
      const writing = { writing: false, committing: false };
      this.#holds.set(slot, { node, slot, generation, offset, bytes, ...writing, reads: 1 });
    }
    this.#held++;
    out.slot[i] = slot;
    out.generation[i] = generation;
    out.bytes[i] = bytes;
    out.offset[i] = offset;
    const words = new Uint32Array(out.checksum.buffer, out.checksum.byteOffset + i * 8, 2);
    words[0] = table.checksumLoOf(node);
    words[1] = table.checksumHiOf(node);
    return BlockOutcome.ok;
  }

  /** One read of a block is over. */
  giveBack(hold: Hold): void {
    hold.reads--;
    this.#held--;
    if (hold.reads === 0) this.#holds.delete(hold.slot);
    this.store.table.unlock(hold.node);
    this.store.ram.letGo(hold.node);
  }

  /**
   * What is half written is taken out of the tree, but its slots are not used again before `bury`:
   * the process may still write to them.
   */
  quarantine(): void {
    const { slots, stats } = this.store;
    for (const hold of [...this.#holds.values()]) {
      // Its bytes are complete: the commit goes its way.
      if (!hold.writing || hold.committing) continue;
      this.forget(hold);
      slots.quarantine(hold.slot);
      this.#quarantined.push(hold.slot);
      this.dropWriter(hold);
      stats.quarantinedSlots++;
    }
  }

  /** Nobody touches any of it any more. */
  bury(): void {
    const { slots } = this.store;
    for (const slot of this.#quarantined) slots.bury(slot);
    this.#quarantined.length = 0;
    for (const hold of [...this.#holds.values()].reverse()) {
      if (!hold.writing) while (hold.reads > 0) this.giveBack(hold);
    }
  }
}
