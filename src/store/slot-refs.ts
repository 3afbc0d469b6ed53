import { BlockOutcome, type NamespaceIndex, type NodeId } from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import type { HandleBatch } from "./batches.ts";
import type { SlotShare } from "./block-store.ts";
import { ANY_ZONE } from "./blocks/index.ts";
import type { EngineMember } from "./engines/announcements.ts";
import { isWhole } from "./reservation.ts";
import type { TieredStore } from "./tiered-store.ts";

/** What of a batch names slots. */
type Handles = Pick<HandleBatch, "slot" | "generation">;

const NO_LIMIT: SlotShare = { mayTake: () => true, took: () => undefined, gave: () => undefined };

/** The slots that one engine connection holds, and how many it may. */
export class HeldSlots {
  readonly store: TieredStore;
  readonly namespace: NamespaceIndex;
  /** Whose reservations what is handed out takes over. */
  readonly engine: EngineMember;
  /** Blocks on their way for this holder, each of which takes a handle when it is here. */
  coming = 0;
  /** Where what it takes should lie. */
  zone: number = ANY_ZONE;
  readonly #max: number;
  readonly #share: SlotShare;
  /** By slot: a slot is either written by this holder or read by it. */
  readonly #holds = new Map<number, Hold>();
  /** Half written and out of the tree, but their slots may still be written to. */
  readonly #aside = new Set<Hold>();
  /** The process is dead. */
  #buried = false;
  #held = 0;

  constructor(
    store: TieredStore,
    namespace: NamespaceIndex,
    max: number,
    share: SlotShare = NO_LIMIT,
  ) {
    this.store = store;
    this.namespace = namespace;
    this.engine = store.engines.open();
    this.#max = max;
    this.#share = share;
  }

  get count(): number {
    return this.#held + this.coming + this.#aside.size;
  }

  /** Whether one more may be held. */
  get hasRoom(): boolean {
    return this.count < this.#max;
  }

  /** The hold behind handle `i`. */
  find(handles: Handles, i: number): Hold | null {
    const hold = this.#holds.get(handles.slot[i]!);
    return hold?.generation === handles.generation[i]! ? hold : null;
  }

  /** The same where it is a slot still to be written. */
  written(handles: Handles, i: number): Hold | null {
    const hold = this.find(handles, i);
    return hold?.writing && !hold.committing ? hold : null;
  }

  mayTake(bytes: number): boolean {
    return this.#share.mayTake(this.store.slots.slotBytesFor(bytes));
  }

  #took(bytes: number): void {
    this.#share.took(this.store.slots.slotBytesFor(bytes));
  }

  #gave(bytes: number): void {
    this.#share.gave(this.store.slots.slotBytesFor(bytes));
  }

  keep(hold: Hold): void {
    this.#holds.set(hold.slot, hold);
    this.#took(hold.bytes);
    this.#held++;
  }

  forget(hold: Hold): void {
    this.#holds.delete(hold.slot);
    this.#gave(hold.bytes);
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
    const slot = table.slotOf(node);
    const hold = this.#holds.get(slot);
    const bytes = table.bytesOf(node);
    if (!this.hasRoom) return BlockOutcome.rejected;
    if (hold === undefined && !this.mayTake(bytes)) return BlockOutcome.full;
    if (!table.lock(node)) return BlockOutcome.rejected;
    this.engine.taken(node);
    const generation = table.slotGenerationOf(node);
    const offset = slots.offsetOf(slot);
    if (hold !== undefined) hold.reads++;
    else {
      this.#took(bytes);
      const state = { writing: false, committing: false, reads: 1, copies: null };
      this.#holds.set(slot, { node, slot, generation, offset, bytes, ...state });
    }
    this.#held++;
    slots.addReference(slot);
    out.slot[i] = slot;
    out.generation[i] = generation;
    out.bytes[i] = bytes;
    out.offset[i] = offset;
    const words = new Uint32Array(out.checksum.buffer, out.checksum.byteOffset + i * 8, 2);
    words[0] = table.checksumLoOf(node);
    words[1] = table.checksumHiOf(node);
    table.readMac(node, out.mac, i * MAC_BYTES);
    return BlockOutcome.ok;
  }

  /** One read of a block is over. */
  giveBack(hold: Hold): void {
    hold.reads--;
    this.#held--;
    if (hold.reads === 0) {
      this.#holds.delete(hold.slot);
      this.#gave(hold.bytes);
    }
    this.store.slots.dropReference(hold.slot);
    this.store.table.unlock(hold.node);
    this.store.ram.letGo(hold.node);
  }

  /**
   * What is half written is taken out of the tree, but its slots are not used again before `bury`:
   * the process may still write to them.
   */
  quarantine(): void {
    const { stats } = this.store;
    for (const hold of [...this.#holds.values()]) {
      // Its bytes are complete: the commit goes its way.
      if (!hold.writing || hold.committing) continue;
      this.#setAside(hold);
      stats.quarantinedSlots++;
    }
  }

  #setAside(hold: Hold): void {
    this.forget(hold);
    this.store.slots.quarantine(hold.slot);
    this.#aside.add(hold);
    this.#took(hold.bytes);
    this.dropWriter(hold);
  }

  /** Given back unwritten: free as soon as no device writes to it. */
  abort(hold: Hold): void {
    if (hold.copies?.underWay || hold.copies?.leaked) {
      hold.copies.aborted = true;
      this.#setAside(hold);
      this.#freeIfIdle(hold);
      return;
    }
    this.forget(hold);
    this.store.slots.release(hold.slot);
    this.dropWriter(hold);
  }

  /** A slot that is being written, for a device to write to on the writer's behalf. */
  lendWritten(hold: Hold): LentSlot {
    const { offset, bytes } = hold;
    hold.copies ??= new SlotCopies();
    const { copies } = hold;
    copies.begin();
    const end = (how: CopyEnd) => {
      copies.end(how);
      this.#freeIfIdle(hold);
    };
    return { offset, bytes, end };
  }

  /** A slot that is read, for a device to read; null where it cannot be locked once more. */
  lendRead({ node, slot, offset, bytes }: Hold): LentBlock | null {
    const { store } = this;
    if (!store.table.lock(node)) return null;
    store.slots.addReference(slot);
    const end = (how: CopyEnd) => {
      // A device that cannot be stopped would read there whatever comes to lie there.
      if (how === "leaked") return;
      store.slots.dropReference(slot);
      store.table.unlock(node);
      store.ram.letGo(node);
    };
    const isRight = async () => {
      const isRight = await isWhole(store, node, offset, bytes);
      // Where RAM is damaged, the next one who asks gets a miss.
      if (!isRight) await store.checks.check(node, "gpu");
      return isRight;
    };
    return { offset, bytes, end, isWhole: isRight };
  }

  #freeIfIdle(hold: Hold): void {
    const { copies } = hold;
    const mayGo = this.#aside.has(hold) && (this.#buried || copies?.aborted === true);
    if (!mayGo || copies?.underWay) return;
    this.#aside.delete(hold);
    this.#gave(hold.bytes);
    if (!copies?.leaked) this.store.slots.bury(hold.slot);
  }

  /** Nobody touches any of it any more. */
  bury(): void {
    this.#buried = true;
    for (const hold of [...this.#aside]) this.#freeIfIdle(hold);
    for (const hold of [...this.#holds.values()].reverse()) {
      if (!hold.writing) while (hold.reads > 0) this.giveBack(hold);
      // With the process its memory went, from which a device may still be copying.
      else if (hold.copies?.underWay) hold.copies.failed = true;
    }
  }
}

/** One slot that a connection holds: either being written by it, or read by it `reads` times. */
export interface Hold {
  readonly node: NodeId;
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  readonly bytes: number;
  readonly writing: boolean;
  /** Its bytes are being hashed: it can be neither aborted nor committed again. */
  committing: boolean;
  reads: number;
  /** Copies by devices into it; null: there was none. */
  copies: SlotCopies | null;
}

/**
 * How a copy by a device ended. `leaked`: it could not be stopped, and may touch the slot until
 * this process ends.
 */
export type CopyEnd = "done" | "failed" | "leaked";

/** A slot that a device copies from or to. It is nobody else's before `end`. */
export interface LentSlot {
  /** In the arena, in bytes. */
  readonly offset: number;
  /** Length of the block. */
  readonly bytes: number;
  /** Called once, when the device does not touch the slot any more. */
  end(how: CopyEnd): void;
}

/** One that is read: the block is locked until `end`, whatever becomes of its reader. */
export interface LentBlock extends LentSlot {
  /** Whether what lies there is the block, by its checksum. Asked before `end`. */
  isWhole(): Promise<boolean>;
}

/** Copies by devices into a slot that is being written. */
class SlotCopies {
  /** One of them failed: what lies there is not what its writer takes it for. */
  failed = false;
  leaked = false;
  /** The writer gave the slot back meanwhile. */
  aborted = false;
  #underWay = 0;
  #waiting: (() => void)[] = [];

  get underWay(): boolean {
    return this.#underWay > 0;
  }

  begin(): void {
    this.#underWay++;
  }

  end(how: CopyEnd): void {
    this.#underWay--;
    if (how !== "done") this.failed = true;
    if (how === "leaked") this.leaked = true;
    if (this.#underWay === 0) for (const tell of this.#waiting.splice(0)) tell();
  }

  /** Resolves when none is under way. */
  async over(): Promise<void> {
    while (this.#underWay > 0) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }
}
