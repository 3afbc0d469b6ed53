import type { NodeId } from "../../core/index.ts";
import { crashPoint, type HeaderSlot, type StatusName } from "../../native/index.ts";
import { NodeFlag, type SlotAllocator, Tier } from "../blocks/index.ts";
import { encodeHeader, VARIANT_MAX } from "../kvb/index.ts";
import type { CircuitBreaker } from "./ssd-health.ts";
import type { SsdParts } from "./ssd-parts.ts";
import type { SsdRoom } from "./ssd-room.ts";

/**
 * Outcome of a write to SSD. `refused`: no room is free or will become free. `skipped`: the write
 * did not take place, for example because writing is suspended.
 */
type WriteOutcome = "written" | "refused" | "skipped" | "failed";

interface Write {
  readonly node: NodeId;
  /** Slot number of the block in RAM. */
  readonly slot: number;
  /** True if RAM needs the slot: the block is dropped from RAM when the write has succeeded. */
  leaves: boolean;
  /**
   * True if the block was removed while this write was queued or in progress: the file must not
   * stay.
   */
  cancelled: boolean;
  readonly done: PromiseWithResolvers<WriteOutcome>;
}

interface WriterOptions {
  readonly slots: SlotAllocator;
  /** Drops the block from RAM if nothing protects it there. */
  readonly leaveRam: (node: NodeId) => void;
}

/**
 * Writes blocks from RAM to SSD in the order in which they were queued. Locks a queued block, so
 * that its slot does not change before the kernel has read it. The queue has a limit in bytes; a
 * block that exceeds it is refused.
 */
export class BlockWriter {
  /** Written blocks that a power loss may still destroy. */
  readonly fresh = new FreshFiles();
  readonly #parts: SsdParts;
  readonly #room: SsdRoom;
  readonly #gate: CircuitBreaker;
  readonly #options: WriterOptions;
  readonly #waiting: Write[] = [];
  readonly #writes = new Map<NodeId, Write>();
  /** Sequence number of the latest write that was started in this run. */
  #sequence = 0;
  readonly #queueBytesMax: number;
  #queuedBytes = 0;
  #leavingBytes = 0;
  #running = 0;
  readonly #wantSettled: (() => void)[] = [];

  constructor(
    parts: SsdParts,
    room: SsdRoom,
    gate: CircuitBreaker,
    queueBytesMax: number,
    options: WriterOptions,
  ) {
    this.#parts = parts;
    this.#room = room;
    this.#gate = gate;
    this.#queueBytesMax = queueBytesMax;
    this.#options = options;
    room.removals.onRoom = () => this.#pump();
  }

  /** Bytes of the blocks that are queued or being written. */
  get queuedBytes(): number {
    return this.#queuedBytes;
  }
  get queuedBlocks(): number {
    return this.#writes.size;
  }

  /** Bytes of queued blocks that are dropped from RAM when they are written. */
  get leavingBytes(): number {
    return this.#leavingBytes;
  }

  isQueued(node: NodeId): boolean {
    return this.#writes.has(node);
  }

  /**
   * Queues a block that is in RAM and not on SSD. `leaves`: drop it from RAM after the write.
   * Returns false if the queue is full or writing is suspended. For a block that is already queued,
   * only sets `leaves`.
   */
  take(node: NodeId, leaves: boolean): boolean {
    const { table, stats } = this.#parts;
    const known = this.#writes.get(node);
    if (known?.cancelled) return false;
    if (known !== undefined) {
      if (leaves && !known.leaves) this.#leavingBytes += table.bytesOf(node);
      known.leaves ||= leaves;
      return true;
    }
    // Check for room before queueing, because RAM must know now whether it may drop the block.
    const fits = this.mayTake(node) && this.#room.mayReserve(table.bytesOf(node));
    if (!fits || !table.lock(node)) {
      stats.skippedBlocks++;
      return false;
    }
    const slot = table.slotOf(node);
    this.#options.slots.addReference(slot);
    const done = Promise.withResolvers<WriteOutcome>();
    const write = { node, slot, leaves, cancelled: false, done };
    this.#writes.set(node, write);
    this.#queuedBytes += table.bytesOf(node);
    if (leaves) this.#leavingBytes += table.bytesOf(node);
    this.#waiting.push(write);
    this.#pump();
    return true;
  }

  /** Cancels the drop from RAM after the write. Call when the block was used again while queued. */
  keepInRam(node: NodeId): void {
    const write = this.#writes.get(node);
    if (!write?.leaves) return;
    write.leaves = false;
    this.#leavingBytes -= this.#parts.table.bytesOf(node);
  }

  mayTake(node: NodeId): boolean {
    const bytes = this.#parts.table.bytesOf(node);
    return this.#gate.why === null && this.#queuedBytes + bytes <= this.#queueBytesMax;
  }

  /**
   * Cancels the write of the block. Resolves when the write cannot put the block on SSD any more.
   */
  async cancel(node: NodeId): Promise<void> {
    const write = this.#writes.get(node);
    if (write === undefined) return;
    write.cancelled = true;
    await write.done.promise;
  }

  /**
   * Reports that the block's bytes in RAM were damaged: cancels its write and marks a file written
   * from them as suspect.
   */
  sourceDamaged(node: NodeId): void {
    const write = this.#writes.get(node);
    if (write !== undefined) write.cancelled = true;
    if (this.#parts.table.isResident(node, Tier.ssd)) this.#parts.files.suspect(node);
  }

  /** Removes all waiting blocks from the queue. Writes in progress continue. */
  giveUpWaiting(): void {
    for (const write of this.#waiting.splice(0)) this.#settle(write, "skipped");
  }

  /** Resolves when the next write ends, with any outcome; immediately if the queue is empty. */
  async oneSettled(): Promise<void> {
    if (this.#writes.size === 0) return;
    await new Promise<void>((resolve) => this.#wantSettled.push(resolve));
  }

  /** Resolves when the queue is empty. */
  async settled(): Promise<void> {
    while (this.#writes.size > 0) await this.oneSettled();
  }

  /** Resolves when the block's write has ended; immediately if it is not queued. */
  async over(node: NodeId): Promise<void> {
    await this.#writes.get(node)?.done.promise;
  }

  /** Resolves when all writes that are queued now have ended. */
  async queuedOver(): Promise<void> {
    await Promise.all([...this.#writes.values()].map(({ done }) => done.promise));
  }

  #pump(): void {
    while (this.#waiting.length > 0 && this.#running < this.#parts.disk.depth) {
      if (this.#gate.why !== null) {
        this.giveUpWaiting();
        return;
      }
      const write = this.#waiting[0];
      const room = write.cancelled
        ? ({ kind: "never" } as const)
        : this.#room.reserve(this.#parts.table.bytesOf(write.node), this.#soonRunning);
      if (room.kind === "later") return;
      this.#waiting.shift();
      if (room.kind !== "ok") {
        this.#parts.stats.skippedBlocks++;
        this.#settle(write, "refused");
        continue;
      }
      this.#running++;
      void this.#write(write, room.spare).finally(() => {
        this.#running--;
        this.#pump();
      });
    }
  }

  /** Number of waiting writes that the free I/O slots of the disk allow to start soon. */
  get #soonRunning(): number {
    return Math.min(this.#waiting.length, this.#parts.disk.depth - this.#running);
  }

  async #write(write: Write, spare: string | null): Promise<void> {
    const { table } = this.#parts;
    const bytes = table.bytesOf(write.node);
    const sequence = ++this.#sequence;
    // Wait before taking an I/O slot, since the removal of the old file may need one.
    await this.#room.removals.whenRemoved(this.#parts.files.pathOf(write.node, 0));
    const status = await this.#storeOver(write, sequence, spare);
    const stored = status === "ok";
    this.#room.written(bytes, stored);
    crashPoint("write.stored");
    if (stored) this.#enter(write.node, sequence);
    else this.#parts.index.skip(sequence);
    crashPoint("write.entered");
    if (stored && write.cancelled) await this.#room.drop(write.node);
    if (stored) this.#gate.reset();
    else if (status !== null) this.#failed(status);
    this.#settle(write, stored ? "written" : status === null ? "skipped" : "failed");
  }

  /**
   * Returns whether the bytes in RAM match the committed checksum. Damaged bytes are not written.
   */
  async #isSound({ node, cancelled }: Write): Promise<boolean> {
    return !cancelled && (await this.#parts.checks.check(node, "write")) === "sound";
  }

  /**
   * Writes the block over the spare file. If that fails, or the name is taken, writes a new file.
   */
  async #storeOver(
    write: Write,
    sequence: number,
    spare: string | null,
  ): Promise<"ok" | StatusName | null> {
    const { ioSlots, table } = this.#parts;
    const bytes = table.bytesOf(write.node);
    const status = await ioSlots.run("write", () => this.#store(write, sequence, 0, spare));
    if (spare === null || status === "ok") return status;
    // A hung disk does not remove files, so wait for the removal only if the new file needs the
    // name.
    const removed = this.#room.discardSpare(spare, bytes);
    if (status !== "missing" && status !== "exists") return status;
    await removed;
    return ioSlots.run("write", () => this.#store(write, sequence, 0, null));
  }

  /**
   * Writes the block to a file under the first free name. Overwrites `spare`, if given, only under
   * the first name. Hashes the bytes in RAM after the wait for an I/O slot, which may be long, and
   * returns null if they do not match the committed checksum.
   */
  async #store(
    write: Write,
    sequence: number,
    variant: number,
    spare: string | null,
  ): Promise<"ok" | StatusName | null> {
    const { files, disk, table, region } = this.#parts;
    const { node, slot } = write;
    if (!(await this.#isSound(write))) return null;
    const path = files.pathOf(node, variant);
    if (!this.#room.removals.isRemoving(path)) {
      using header = disk.claimHeader();
      if (header === null) return "full";
      this.#fillHeader(header, node, sequence);
      const offset = this.#options.slots.offsetOf(slot);
      const bytes = table.bytesOf(node);
      const transfer = { path, header, region, offset, bytes };
      const stored = await disk.store(spare === null ? transfer : { ...transfer, spare });
      if (stored.ok) files.setVariant(node, variant);
      if (stored.ok || stored.status !== "exists") return stored.ok ? "ok" : stored.status;
    }
    // The name belongs to another key with the same prefix, or to a file that the table does not
    // know.
    if (spare !== null || variant === VARIANT_MAX) return "exists";
    return this.#store(write, sequence, variant + 1, null);
  }

  #fillHeader(header: HeaderSlot, node: NodeId, sequence: number): void {
    const { files, table, incarnation, clock } = this.#parts;
    encodeHeader(
      {
        digest: table.digestOf(node),
        layer: table.layerOf(node),
        parent: files.parentDigestOf(node),
        namespaceKey: files.namespaceKeyOf(node),
        payloadBytes: table.bytesOf(node),
        payloadChecksum: table.checksumOf(node),
        mac: table.macOf(node),
        incarnation,
        sequence,
        writtenMs: Math.max(0, Math.floor(clock.wallMs())),
      },
      header.bytes,
    );
  }

  /** Records that the block is on SSD. Call when its file is complete. */
  #enter(node: NodeId, sequence: number): void {
    const { table, files, stats, index, namespaces } = this.#parts;
    const bytes = table.bytesOf(node);
    table.addResidency(node, Tier.ssd);
    this.fresh.enter(node);
    stats.writtenBlocks++;
    stats.writtenBytes += bytes;
    const macKeyId = namespaces.macKeyIdOf(table.namespaceOf(node));
    index.put({
      namespaceKey: files.namespaceKeyOf(node),
      macKeyId: macKeyId === null ? null : Uint8Array.fromHex(macKeyId),
      layer: table.layerOf(node),
      digest: table.digestOf(node),
      parent: files.parentDigestOf(node),
      bytes,
      checksum: table.checksumOf(node),
      variant: files.variantOf(node),
      lastSeen: table.lastUsedOf(node),
      uses: table.usesOf(node),
      sequence,
    });
    putAliases(this.#parts, node);
  }

  #failed(status: StatusName): void {
    const { stats, log } = this.#parts;
    stats.writeErrors++;
    if (status === "full" || status === "exists") return;
    if (this.#gate.why === null) log("warn", "writes to SSD suspended", { status });
    this.#gate.trip(status);
  }

  #settle(write: Write, outcome: WriteOutcome): void {
    const { table } = this.#parts;
    const { node } = write;
    this.#writes.delete(node);
    this.#queuedBytes -= table.bytesOf(node);
    if (write.leaves) this.#leavingBytes -= table.bytesOf(node);
    const leaves = write.leaves && outcome !== "skipped" && !table.hasFlag(node, NodeFlag.writing);
    this.#options.slots.dropReference(write.slot);
    table.unlock(node);
    if (leaves) this.#options.leaveRam(node);
    write.done.resolve(outcome);
    for (const resolve of this.#wantSettled.splice(0)) resolve();
  }
}

/** Writes the aliases of a block that is on SSD to the index. */
export function putAliases({ table, files, index }: SsdParts, node: NodeId): void {
  const aliases = table.aliasesOf(node);
  if (aliases.length === 0) return;
  const namespaceKey = files.namespaceKeyOf(node);
  const row = { namespaceKey, layer: table.layerOf(node), digest: table.digestOf(node) };
  for (const alias of aliases) index.putAlias({ ...row, alias });
}

/** Maximum number of files tracked individually. Takes some megabytes. */
const FILES_MAX = 65_536;

/**
 * Tracks which written blocks a power loss may destroy: those written since the disk last confirmed
 * a sync. If there are too many to track, older blocks also count as unsafe.
 */
class FreshFiles {
  /** Sequence number by node, the oldest first. */
  readonly #files = new Map<NodeId, number>();
  #came = 0;
  /** Files with sequence numbers up to this one are safe. Files of an earlier run have number 0. */
  #safe = -1;
  #forgotten = 0;

  /** Number of files added so far. */
  get came(): number {
    return this.#came;
  }

  /** Adds a block whose file was just written. */
  enter(node: NodeId): void {
    this.#files.delete(node);
    this.#files.set(node, ++this.#came);
    if (this.#files.size <= FILES_MAX) return;
    const [oldest, number] = this.#files.entries().next().value!;
    this.#files.delete(oldest);
    this.#forgotten = number;
  }

  /** Records that the disk has synced the first `came` files. */
  noteSafe(came: number): void {
    this.#safe = Math.max(this.#safe, came);
    for (const [node, number] of this.#files) {
      if (number > this.#safe) return;
      this.#files.delete(node);
    }
  }

  /** Returns whether the file of a block on SSD survives a power loss. */
  isSafe(node: NodeId): boolean {
    return !this.#files.has(node) && this.#forgotten <= this.#safe;
  }
}
