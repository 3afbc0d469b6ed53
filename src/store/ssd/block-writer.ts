import type { NodeId } from "../../core/index.ts";
import { crashPoint, type HeaderSlot, type StatusName } from "../../native/index.ts";
import { NodeFlag, type SlotAllocator, Tier } from "../blocks/index.ts";
import { encodeHeader, VARIANT_MAX } from "../kvb/index.ts";
import type { Gate } from "./ssd-health.ts";
import type { SsdParts } from "./ssd-parts.ts";
import type { SsdRoom } from "./ssd-room.ts";

/**
 * What became of a block that was to be written. `refused`: there is no room for it, and none will
 * come; `skipped`: nothing is written now.
 */
export type WriteOutcome = "written" | "refused" | "skipped" | "failed";

interface Write {
  readonly node: NodeId;
  /** Where its bytes lie. */
  readonly slot: number;
  /** It is written because RAM needs its place: it leaves RAM as soon as it is there. */
  leaves: boolean;
  /** Somebody purged it meanwhile: the file must not stay. */
  cancelled: boolean;
  readonly done: PromiseWithResolvers<WriteOutcome>;
}

export interface WriterOptions {
  readonly slots: SlotAllocator;
  /** Gives the block's place in RAM free, where it may. */
  readonly leaveRam: (node: NodeId) => void;
}

/**
 * Blocks on their way from RAM to SSD, in the order in which they came. A block in the queue is
 * locked: its slot stays until the kernel has read it. The queue is bounded in bytes; what does not
 * fit is not taken.
 */
export class BlockWriter {
  /** What it wrote and the disk may not have for good. */
  readonly fresh = new FreshFiles();
  readonly #parts: SsdParts;
  readonly #room: SsdRoom;
  readonly #gate: Gate;
  readonly #options: WriterOptions;
  readonly #waiting: Write[] = [];
  readonly #writes = new Map<NodeId, Write>();
  /** Of the latest block that was begun. */
  #sequence = 0;
  readonly #queueBytesMax: number;
  #queuedBytes = 0;
  #leavingBytes = 0;
  #running = 0;
  readonly #wantSettled: (() => void)[] = [];

  constructor(
    parts: SsdParts,
    room: SsdRoom,
    gate: Gate,
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

  /** Bytes of blocks that wait or are being written, and how many blocks those are. */
  get queuedBytes(): number {
    return this.#queuedBytes;
  }
  get queuedBlocks(): number {
    return this.#writes.size;
  }

  /** Of these, bytes of blocks that leave RAM as soon as they are written. */
  get leavingBytes(): number {
    return this.#leavingBytes;
  }

  isQueued(node: NodeId): boolean {
    return this.#writes.has(node);
  }

  /**
   * Takes a block that is in RAM and not on SSD; false where the queue is full or nothing may be
   * written now. A block that is taken already only learns that it is to leave RAM.
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
    // Said now, and not after a turn in the queue: RAM wants to know whether it may drop the block.
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

  /** The block was used again: it stays in RAM when it is written. */
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
   * The block must not come to lie on SSD by a write that is under way; resolves when it cannot.
   */
  async cancel(node: NodeId): Promise<void> {
    const write = this.#writes.get(node);
    if (write === undefined) return;
    write.cancelled = true;
    await write.done.promise;
  }

  /** The block's bytes in RAM were damaged: what was written from them must not pass for right. */
  sourceDamaged(node: NodeId): void {
    const write = this.#writes.get(node);
    if (write !== undefined) write.cancelled = true;
    if (this.#parts.table.isResident(node, Tier.ssd)) this.#parts.files.suspect(node);
  }

  /** Gives up what waits: what is being written goes on. */
  giveUpWaiting(): void {
    for (const write of this.#waiting.splice(0)) this.#settle(write, "skipped");
  }

  /** Resolves when the next block of the queue has come to its end; at once where it is empty. */
  async oneSettled(): Promise<void> {
    if (this.#writes.size === 0) return;
    await new Promise<void>((resolve) => this.#wantSettled.push(resolve));
  }

  /** Resolves when the queue is empty. */
  async settled(): Promise<void> {
    while (this.#writes.size > 0) await this.oneSettled();
  }

  /** Resolves when the block, if it is in the queue, has come to its end. */
  async over(node: NodeId): Promise<void> {
    await this.#writes.get(node)?.done.promise;
  }

  /** Resolves when what is in the queue now has come to its end. */
  async queuedOver(): Promise<void> {
    await Promise.all([...this.#writes.values()].map(({ done }) => done.promise));
  }

  #pump(): void {
    while (this.#waiting.length > 0 && this.#running < this.#parts.disk.depth) {
      if (this.#gate.why !== null) {
        this.giveUpWaiting();
        return;
      }
      const write = this.#waiting[0]!;
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

  /** Of those that wait, as many as may run. */
  get #soonRunning(): number {
    return Math.min(this.#waiting.length, this.#parts.disk.depth - this.#running);
  }

  async #write(write: Write, spare: string | null): Promise<void> {
    const { table } = this.#parts;
    const bytes = table.bytesOf(write.node);
    const sequence = ++this.#sequence;
    // Before it takes a seat, which the removal may need.
    await this.#room.removals.whenRemoved(this.#parts.files.pathOf(write.node, 0));
    const status = await this.#storeOver(write, sequence, spare);
    const stored = status === "ok";
    this.#room.written(bytes, stored);
    crashPoint("write.stored");
    if (stored) this.#enter(write.node, sequence);
    else this.#parts.index.skip(sequence);
    crashPoint("write.entered");
    if (stored && write.cancelled) await this.#room.drop(write.node);
    if (stored) this.#gate.open();
    else if (status !== null) this.#failed(status);
    this.#settle(write, stored ? "written" : status === null ? "skipped" : "failed");
  }

  /** Whether the bytes in RAM are still those that were committed: others are not written. */
  async #isSound({ node, cancelled }: Write): Promise<boolean> {
    return !cancelled && (await this.#parts.checks.check(node, "write")) === "sound";
  }

  /** Writes over the spare file; where that cannot be had, or not under this name, a new one. */
  async #storeOver(
    write: Write,
    sequence: number,
    spare: string | null,
  ): Promise<"ok" | StatusName | null> {
    const { schedule, table } = this.#parts;
    const bytes = table.bytesOf(write.node);
    const status = await schedule.run("write", () => this.#store(write, sequence, 0, spare));
    if (spare === null || status === "ok") return status;
    // A disk that hangs removes nothing: who need not wait for that does not.
    const removed = this.#room.discardSpare(spare, bytes);
    if (status !== "missing" && status !== "exists") return status;
    await removed;
    return schedule.run("write", () => this.#store(write, sequence, 0, null));
  }

  /**
   * Writes the file under the first name that is free; a spare one under the first name alone.
   * Null: the bytes in RAM are not those that were committed. They are hashed behind the queue of
   * the disk, where a write may wait for long.
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
    // Another key with the same short name, or a file nobody knows.
    if (spare !== null || variant === VARIANT_MAX) return "exists";
    return this.#store(write, sequence, variant + 1, null);
  }

  #fillHeader(header: HeaderSlot, node: NodeId, sequence: number): void {
    const { files, table, incarnation, clock } = this.#parts;
    encodeHeader(
      {
        digest: files.digestOf(node),
        layer: table.layerOf(node),
        parent: files.parentDigestOf(node),
        namespaceKey: files.namespaceKeyOf(node),
        payloadBytes: table.bytesOf(node),
        payloadChecksum: files.checksumOf(node),
        mac: files.macOf(node),
        incarnation,
        sequence,
        writtenMs: Math.max(0, Math.floor(clock.wallMs())),
      },
      header.bytes,
    );
  }

  /** The file is there: now the block is on SSD. */
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
      digest: files.digestOf(node),
      parent: files.parentDigestOf(node),
      bytes,
      checksum: files.checksumOf(node),
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
    if (this.#gate.why === null) log("warn", "nothing more is written to SSD", { status });
    this.#gate.shut(status);
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

/** Tells the index the other names of a block that is on SSD. */
export function putAliases({ table, files, index }: SsdParts, node: NodeId): void {
  const aliases = table.aliasesOf(node);
  if (aliases.length === 0) return;
  const namespaceKey = files.namespaceKeyOf(node);
  const row = { namespaceKey, layer: table.layerOf(node), digest: files.digestOf(node) };
  for (const alias of aliases) index.putAlias({ ...row, alias });
}

/** Files remembered one by one: some megabytes. */
const FILES_MAX = 65_536;

/**
 * Which blocks came to SSD so lately that a loss of power may take them: those since the disk last
 * confirmed that all is safe. Where there are too many to remember, older ones count as such too.
 */
class FreshFiles {
  /** By their numbers, the oldest first. */
  readonly #files = new Map<NodeId, number>();
  #came = 0;
  /** Files with numbers up to this one are safe; what an earlier run left is number 0. */
  #safe = -1;
  #forgotten = 0;

  /** How many came so far. */
  get came(): number {
    return this.#came;
  }

  /** The block has come to lie on SSD. */
  enter(node: NodeId): void {
    this.#files.delete(node);
    this.#files.set(node, ++this.#came);
    if (this.#files.size <= FILES_MAX) return;
    const [oldest, number] = this.#files.entries().next().value!;
    this.#files.delete(oldest);
    this.#forgotten = number;
  }

  /** The disk has confirmed the first `came` files. */
  noteSafe(came: number): void {
    this.#safe = Math.max(this.#safe, came);
    for (const [node, number] of this.#files) {
      if (number > this.#safe) return;
      this.#files.delete(node);
    }
  }

  /** Whether the file of a block that is on SSD survives a loss of power. */
  isSafe(node: NodeId): boolean {
    return !this.#files.has(node) && this.#forgotten <= this.#safe;
  }
}
