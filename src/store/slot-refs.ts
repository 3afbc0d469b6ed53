import { BlockOutcome, type NamespaceIndex, type NodeId } from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import type { HandleBatch } from "./batches.ts";
import type { SlotShare } from "./block-store.ts";
import { ANY_ZONE } from "./blocks/index.ts";
import type { EngineMember } from "./engines/announcements.ts";
import { isWhole } from "./reservation.ts";
import type { TieredStore } from "./tiered-store.ts";

/** The columns of a batch that name slots. */
type Handles = Pick<HandleBatch, "slot" | "generation">;

const NO_LIMIT: SlotShare = { mayTake: () => true, took: () => undefined, gave: () => undefined };

/** The slot references of one engine session, and their limit. */
export class HeldSlots {
  readonly store: TieredStore;
  readonly namespace: NamespaceIndex;
  /** The engine whose reservations are converted into slot references by `grant`. */
  readonly engine: EngineMember;
  /** Blocks being read or fetched for this session. Each needs a handle when it arrives. */
  coming = 0;
  /** Preferred allocator zone of new slots. */
  zone: number = ANY_ZONE;
  readonly #max: number;
  readonly #share: SlotShare;
  /** By slot number. This session either writes or reads a slot. */
  readonly #holds = new Map<number, Hold>();
  /** Unfinished writes that left the tree, but whose slots the process may still write to. */
  readonly #aside = new Set<Hold>();
  /** Whether the process has exited. */
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

  /** Whether one more reference is within the limit. */
  get hasRoom(): boolean {
    return this.count < this.#max;
  }

  /** The reference of handle `i`; null if the handle is stale. */
  find(handles: Handles, i: number): Hold | null {
    const hold = this.#holds.get(handles.slot[i]!);
    return hold?.generation === handles.generation[i]! ? hold : null;
  }

  /** The reference of handle `i` if its slot is reserved for writing; otherwise null. */
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

  /** Unlocks the node of a failed write, so that the node can be removed. */
  dropWriter(hold: Hold): void {
    const { table, stats } = this.store;
    stats.abortedBlocks++;
    table.endWrite(hold.node);
    table.unlock(hold.node);
  }

  /** Grants the session a reference to a block in RAM, as block `i` of the answer. */
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

  /** Ends one read reference. */
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
   * Removes unfinished writes from the tree. Their slots are not reused before `bury`, since the
   * process may still write to them.
   */
  quarantine(): void {
    const { stats } = this.store;
    for (const hold of [...this.#holds.values()]) {
      // The bytes are complete: let the commit finish.
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

  /** Releases a reserved slot without publishing it; after the device copy if one is under way. */
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

  /** The slot as the target of a device copy on the writer's behalf. */
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

  /** The slot as the source of a device copy; null if the block cannot be locked once more. */
  lendRead({ node, slot, offset, bytes }: Hold): LentBlock | null {
    const { store } = this;
    if (!store.table.lock(node)) return null;
    store.slots.addReference(slot);
    const end = (how: CopyEnd) => {
      // The device may read the slot at any time until this process exits: never reuse the slot.
      if (how === "leaked") return;
      store.slots.dropReference(slot);
      store.table.unlock(node);
      store.ram.letGo(node);
    };
    const isRight = async () => {
      const isRight = await isWhole(store, node, offset, bytes);
      // If the bytes in RAM are damaged, remove the block, so that the next request gets a miss.
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

  /** Call when no process touches the slots any more. Releases all of them. */
  bury(): void {
    this.#buried = true;
    for (const hold of [...this.#aside]) this.#freeIfIdle(hold);
    for (const hold of [...this.#holds.values()].reverse()) {
      if (!hold.writing) while (hold.reads > 0) this.giveBack(hold);
      // The process's memory is gone, which a device copy may still be reading.
      else if (hold.copies?.underWay) hold.copies.failed = true;
    }
  }
}

/**
 * A slot reference of an engine session: it either writes the slot, or has `reads` read references
 * to it.
 */
export interface Hold {
  readonly node: NodeId;
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  readonly bytes: number;
  readonly writing: boolean;
  /** The bytes are being hashed: the slot can be neither aborted nor committed again. */
  committing: boolean;
  reads: number;
  /** Device copies into the slot; null if there was none. */
  copies: SlotCopies | null;
}

/**
 * End of a device copy. `leaked`: the copy could not be stopped and may access the slot until this
 * process exits.
 */
export type CopyEnd = "done" | "failed" | "leaked";

/** A slot that a device copies to or from. The slot is not reused before `end`. */
export interface LentSlot {
  /** Bytes from the arena's start. */
  readonly offset: number;
  /** Length of the block. */
  readonly bytes: number;
  /** Call once, when the device no longer accesses the slot. */
  end(how: CopyEnd): void;
}

/** The source of a device copy. The block is locked until `end`, even if its reader releases it. */
export interface LentBlock extends LentSlot {
  /** Whether the bytes match the block's checksum. Call before `end`. */
  isWhole(): Promise<boolean>;
}

/** Device copies into a slot that is being written. */
class SlotCopies {
  /** A copy failed: the slot does not contain what the writer intended. */
  failed = false;
  leaked = false;
  /** The writer has aborted the slot meanwhile. */
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

  /** Resolves when no copy is under way. */
  async over(): Promise<void> {
    while (this.#underWay > 0) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }
}
