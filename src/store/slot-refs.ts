import { BlockOutcome, type NamespaceIndex, type NodeId } from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import type { HandleBatch } from "./batches.ts";
import type { SlotShare } from "./block-store.ts";
import { ANY_ZONE } from "./blocks/index.ts";
import type { EngineMember } from "./engines/engines.ts";
import { isWhole } from "./reservation.ts";
import type { TieredStore } from "./tiered-store.ts";

/** The columns of a batch that name slots. */
type Handles = Pick<HandleBatch, "slot" | "generation">;

const NO_LIMIT: SlotShare = { mayTake: () => true, took: () => undefined, gave: () => undefined };

/** The slot references of one engine session, and their limit. */
export class SlotRefs {
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
  readonly #refs = new Map<number, SlotRef>();
  /** Unfinished writes that left the tree, but whose slots the process may still write to. */
  readonly #aside = new Set<SlotRef>();
  /** Whether the process has exited. */
  #buried = false;
  #size = 0;

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
    return this.#size + this.coming + this.#aside.size;
  }

  /** Whether one more reference is within the limit. */
  get hasRoom(): boolean {
    return this.count < this.#max;
  }

  /** The reference of handle `i`; null if the handle is stale. */
  find(handles: Handles, i: number): SlotRef | null {
    const ref = this.#refs.get(handles.slot[i]!);
    return ref?.generation === handles.generation[i]! ? ref : null;
  }

  /** The reference of handle `i` if its slot is reserved for writing; otherwise null. */
  written(handles: Handles, i: number): SlotRef | null {
    const ref = this.find(handles, i);
    return ref?.writing && !ref.committing ? ref : null;
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

  keep(ref: SlotRef): void {
    this.#refs.set(ref.slot, ref);
    this.#took(ref.bytes);
    this.#size++;
  }

  forget(ref: SlotRef): void {
    this.#refs.delete(ref.slot);
    this.#gave(ref.bytes);
    this.#size--;
  }

  /** Unlocks the node of a failed write, so that the node can be removed. */
  dropWriter(ref: SlotRef): void {
    const { table, stats } = this.store;
    stats.abortedBlocks++;
    table.endWrite(ref.node);
    table.unlock(ref.node);
  }

  /** Grants the session a reference to a block in RAM, as block `i` of the answer. */
  grant(node: NodeId, i: number, out: HandleBatch): number {
    const { table, slots } = this.store;
    const slot = table.slotOf(node);
    const ref = this.#refs.get(slot);
    const bytes = table.bytesOf(node);
    if (!this.hasRoom) return BlockOutcome.rejected;
    if (ref === undefined && !this.mayTake(bytes)) return BlockOutcome.full;
    if (!table.lock(node)) return BlockOutcome.rejected;
    this.engine.taken(node);
    const generation = table.slotGenerationOf(node);
    const offset = slots.offsetOf(slot);
    if (ref !== undefined) ref.reads++;
    else {
      this.#took(bytes);
      const state = { writing: false, committing: false, reads: 1, copies: null };
      this.#refs.set(slot, { node, slot, generation, offset, bytes, ...state });
    }
    this.#size++;
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
  giveBack(ref: SlotRef): void {
    ref.reads--;
    this.#size--;
    if (ref.reads === 0) {
      this.#refs.delete(ref.slot);
      this.#gave(ref.bytes);
    }
    this.store.slots.dropReference(ref.slot);
    this.store.table.unlock(ref.node);
    this.store.ram.letGo(ref.node);
  }

  /**
   * Removes unfinished writes from the tree. Their slots are not reused before `bury`, since the
   * process may still write to them.
   */
  quarantine(): void {
    const { stats } = this.store;
    for (const ref of [...this.#refs.values()]) {
      // The bytes are complete: let the commit finish.
      if (!ref.writing || ref.committing) continue;
      this.#setAside(ref);
      stats.quarantinedSlots++;
    }
  }

  #setAside(ref: SlotRef): void {
    this.forget(ref);
    this.store.slots.quarantine(ref.slot);
    this.#aside.add(ref);
    this.#took(ref.bytes);
    this.dropWriter(ref);
  }

  /** Releases a reserved slot without publishing it; after the device copy if one is under way. */
  abort(ref: SlotRef): void {
    if (ref.copies?.underWay || ref.copies?.leaked) {
      ref.copies.aborted = true;
      this.#setAside(ref);
      this.#freeIfIdle(ref);
      return;
    }
    this.forget(ref);
    this.store.slots.release(ref.slot);
    this.dropWriter(ref);
  }

  /** The slot as the target of a device copy on the writer's behalf. */
  copyTarget(ref: SlotRef): CopySlot {
    const { offset, bytes } = ref;
    ref.copies ??= new SlotCopies();
    const { copies } = ref;
    copies.begin();
    const end = (how: CopyEnd) => {
      copies.end(how);
      this.#freeIfIdle(ref);
    };
    return { offset, bytes, end };
  }

  /** The slot as the source of a device copy; null if the block cannot be locked once more. */
  copySource({ node, slot, offset, bytes }: SlotRef): CopySource | null {
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

  #freeIfIdle(ref: SlotRef): void {
    const { copies } = ref;
    const mayGo = this.#aside.has(ref) && (this.#buried || copies?.aborted === true);
    if (!mayGo || copies?.underWay) return;
    this.#aside.delete(ref);
    this.#gave(ref.bytes);
    if (!copies?.leaked) this.store.slots.bury(ref.slot);
  }

  /** Call when no process touches the slots any more. Releases all of them. */
  bury(): void {
    this.#buried = true;
    for (const ref of [...this.#aside]) this.#freeIfIdle(ref);
    for (const ref of [...this.#refs.values()].reverse()) {
      if (!ref.writing) while (ref.reads > 0) this.giveBack(ref);
      // The process's memory is gone, which a device copy may still be reading.
      else if (ref.copies?.underWay) ref.copies.failed = true;
    }
  }
}

/**
 * A slot reference of an engine session: it either writes the slot, or has `reads` read references
 * to it.
 */
export interface SlotRef {
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
export interface CopySlot {
  /** Bytes from the arena's start. */
  readonly offset: number;
  /** Length of the block. */
  readonly bytes: number;
  /** Call once, when the device no longer accesses the slot. */
  end(how: CopyEnd): void;
}

/** The source of a device copy. The block is locked until `end`, even if its reader releases it. */
export interface CopySource extends CopySlot {
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
