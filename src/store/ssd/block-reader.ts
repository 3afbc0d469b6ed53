import { NO_NODE, type NodeId } from "../../core/index.ts";
import {
  crashPoint,
  type HeaderSlot,
  MAC_BYTES,
  type Native,
  NativeError,
  Region,
} from "../../native/index.ts";
import { NO_SLOT, type SlotAllocator, Tier } from "../blocks/index.ts";
import { type DecodedHeader, decodeHeader, type ExpectedBlock } from "../kvb/index.ts";
import { Scrub } from "../ram-check.ts";
import type { RamTier } from "../ram-tier.ts";
import { damaged, faultOfRead, type ReadFault, type ReadFile } from "./block-files.ts";
import type { ReadCircuitBreaker } from "./ssd-health.ts";
import type { SsdParts } from "./ssd-parts.ts";
import type { SsdRoom } from "./ssd-room.ts";

/** `ok`: the block is in RAM. `miss`: it could not be read. `full`: RAM has no room for it now. */
export type ReadOutcome = "ok" | "miss" | "full";

/**
 * Result of reading and verifying a block. `stale`: valid, but not the version in the block table.
 * `error`: the disk cannot read it. `gone`: the block left SSD during the read. `unserved`: not
 * read, for example because no request waits for it. `bad_memory`: the file is correct, but the
 * memory changes bytes written to it.
 */
type Verdict = "ok" | "damaged" | "stale" | "error" | "gone" | "unserved" | "bad_memory";

/** Memory into which a block is read. */
interface Destination {
  readonly region: Region;
  readonly offset: number;
}

const PAGE = 4096;
const NO_MAC = new Uint8Array(MAC_BYTES);
interface Damage {
  readonly path: string;
  readonly why: string;
  /**
   * True if, according to the header, this run of the agent wrote the file, so that the payload was
   * the content of RAM at that time.
   */
  readonly isOwnPayload: boolean;
}

type Judged = Exclude<Verdict, "damaged" | "bad_memory"> | Damage;

export interface LoadOptions {
  /** True if no request waits for the block: the read has lower priority until one does. */
  readonly warm?: boolean;
  /** Whether pins and leases may be ended to make room; see `RamTier.takeSlot`. */
  readonly mayEvictPins?: boolean;
  readonly zone?: number;
}

/**
 * Reads blocks from SSD into RAM. Combines concurrent reads of one block. Accepts a block only
 * after verification. After a mismatch, reads the file into other memory. If that copy is wrong
 * too, the file is quarantined. If it is correct, and a second read into the first slot is wrong
 * again, the memory of that slot is damaged. In both cases the result is a miss.
 */
export class BlockReader {
  readonly #parts: SsdParts;
  readonly #room: SsdRoom;
  readonly #breaker: ReadCircuitBreaker;
  readonly #slots: SlotAllocator;
  readonly #ram: RamTier;
  readonly #reads = new Map<NodeId, Promise<ReadOutcome>>();
  /** Nodes being read although no request waits for them. */
  readonly #warming = new Set<NodeId>();
  /** Called with the path of the file and the reason when a block is damaged. */
  readonly #onCorrupt: (path: string, why: string) => void;
  readonly #native: Native;

  constructor(
    native: Native,
    parts: SsdParts,
    room: SsdRoom,
    breaker: ReadCircuitBreaker,
    slots: SlotAllocator,
    ram: RamTier,
    onCorrupt: (path: string, why: string) => void,
  ) {
    this.#native = native;
    this.#parts = parts;
    this.#room = room;
    this.#breaker = breaker;
    this.#slots = slots;
    this.#ram = ram;
    this.#onCorrupt = onCorrupt;
  }

  get reading(): number {
    return this.#reads.size;
  }

  isReading(node: NodeId): boolean {
    return this.#reads.has(node);
  }

  /**
   * Reads a block from SSD into RAM. The caller must keep a lock on the node until the promise
   * resolves.
   */
  load(node: NodeId, options: LoadOptions = {}): Promise<ReadOutcome> {
    const { warm = false, mayEvictPins = true, zone } = options;
    const work = warm ? "warm" : "read";
    const under = this.#reads.get(node);
    if (under !== undefined) {
      this.#parts.stats.sharedReads++;
      if (work === "read" && this.#warming.delete(node)) this.#parts.ioSlots.hasten(node);
      return under;
    }
    const slot = this.#ram.takeSlot(this.#parts.table.bytesOf(node), mayEvictPins, zone);
    if (slot === NO_SLOT) return Promise.resolve("full");
    if (work === "warm") this.#warming.add(node);
    const read = this.#read(node, slot, work).finally(() => {
      this.#reads.delete(node);
      this.#warming.delete(node);
    });
    this.#reads.set(node, read);
    return read;
  }

  /** Resolves when no read is in progress. */
  async settled(): Promise<void> {
    while (this.#reads.size > 0) await Promise.all(this.#reads.values());
  }

  async #read(node: NodeId, slot: number, work: "read" | "warm"): Promise<ReadOutcome> {
    const { table, stats, region } = this.#parts;
    table.lock(node);
    const place = { region, offset: this.#slots.offsetOf(slot) };
    const load = (header: HeaderSlot, at: Destination) => this.#load(node, header, at);
    const verdict = await this.#verdict(node, work, place, load);
    crashPoint("promotion.read");
    if (verdict === "ok") {
      table.setSlot(node, slot, this.#slots.generationOf(slot));
      this.#slots.setNode(slot, node);
      this.#slots.publish(slot);
      table.addResidency(node, Tier.ram);
      stats.readBlocks++;
      stats.readBytes += table.bytesOf(node);
      this.#ram.promoted(node);
    } else if (verdict === "bad_memory") {
      // Never reuse a slot with damaged memory: blocks stored there would be damaged too.
      this.#slots.quarantine(slot);
    } else {
      this.#slots.release(slot);
    }
    table.unlock(node);
    return verdict === "ok" ? "ok" : "miss";
  }

  /**
   * Reads with `load` and verifies. After a mismatch, reads the file into other memory to find out
   * whether file or memory is damaged, and handles the damage.
   */
  async #verdict(
    node: NodeId,
    work: "read" | "warm" | "scrub",
    place: Destination,
    load: (header: HeaderSlot, place: Destination) => Promise<Judged>,
  ): Promise<Verdict> {
    const { ioSlots, table } = this.#parts;
    const generation = table.generationOf(node);
    const isThere = () => table.isLive(node, generation) && table.isResident(node, Tier.ssd);
    // Each waiting request holds a lock, and this read holds one too.
    const isWanted = () => work === "scrub" || table.locksOf(node) > 1;
    const read = async (at: Destination): Promise<Judged> => {
      // While this read waited for an I/O slot, the block may have been removed, or the disk given
      // up.
      if (!isThere()) return "gone";
      // Skip the read if all its requests have given up: a slow disk should serve those that still
      // wait.
      if (!isWanted()) return "unserved";
      // While the disk counts as broken, only a read that a request waits for may try it.
      if (work === "read" ? !this.#breaker.mayRead() : this.#breaker.gate.why !== null) {
        return "unserved";
      }
      using header = this.#parts.disk.claimHeader();
      const verdict = header === null ? "unserved" : await load(header, at);
      if (work === "read" && verdict === "unserved") this.#breaker.gate.returnTrial();
      return verdict;
    };
    const readAt = async (at: Destination) =>
      (await ioSlots.run(work, () => read(at), node)) ?? "unserved";
    let judged = await readAt(place);
    if (typeof judged === "object") {
      judged = await this.#elsewhere(table.bytesOf(node), readAt);
      if (judged === "ok") {
        judged = await readAt(place);
        if (typeof judged === "object") {
          this.#badMemory(node, place);
          return "bad_memory";
        }
      }
    }
    // Discard the verdict if the block was removed during the read.
    if (!isThere()) return "gone";
    if (typeof judged === "object") {
      await this.#setAside(node, judged, isThere);
      return "damaged";
    }
    if (judged === "error" || judged === "gone" || judged === "stale") {
      void this.#room.drop(node, { reason: "lost", by: null });
    }
    return judged;
  }

  /**
   * Reads into separate memory and verifies. Returns `unserved` if the host has no memory for that
   * now.
   */
  async #elsewhere(bytes: number, readAt: (at: Destination) => Promise<Judged>): Promise<Judged> {
    using region = tryRegion(this.#native, bytes);
    return region === null ? "unserved" : await readAt({ region, offset: 0 });
  }

  #badMemory(node: NodeId, { region, offset }: Destination): void {
    const { checks, log } = this.#parts;
    const isArena = region === this.#parts.region;
    checks.placeDamaged(node, isArena ? offset : null);
    log("warn", "memory corrupts data read into it", { offset, arena: isArena });
  }

  /**
   * Quarantines a damaged file. If the bytes were already damaged in RAM when this run wrote the
   * file, removes the file instead.
   */
  async #setAside(node: NodeId, damage: Damage, isThere: () => boolean): Promise<void> {
    const { files, checks, stats, log } = this.#parts;
    const { path, why, isOwnPayload } = damage;
    const isRam =
      isOwnPayload && (files.isSuspect(node) || (await checks.check(node, "file")) === "damaged");
    if (!isThere()) return;
    if (isRam) {
      stats.ramDamagedFiles++;
      log("warn", "block was damaged in RAM before it was written to SSD", { path });
      await this.#room.drop(node, { reason: "quarantined", by: null });
      return;
    }
    stats.corruptBlocks++;
    this.#onCorrupt(path, why);
    await this.#room.quarantine(node);
  }

  async #load(node: NodeId, header: HeaderSlot, place: Destination): Promise<Judged> {
    const { files, disk, table } = this.#parts;
    const path = files.pathOf(node);
    const expected = files.expected(node);
    const loaded = await disk.load({ path, header, ...place, bytes: expected.bytes });
    if (loaded.ok) {
      this.#breaker.succeeded();
      const decoded = decodeHeader(header.bytes);
      const fault = await this.#faultOf(node, decoded, loaded, expected, place);
      if (fault === null && decoded.ok) table.setMac(node, decoded.header.mac ?? NO_MAC);
      return this.#judge(path, fault);
    }
    if (loaded.status === "missing") {
      this.#breaker.succeeded();
      return "gone";
    }
    if (loaded.status === "short") {
      this.#breaker.succeeded();
      return tooShort(path);
    }
    if (loaded.status === "full") return "unserved";
    this.#parts.stats.readErrors++;
    this.#breaker.failed(loaded.status);
    // Only a medium error says something about the block; other failures leave it unread.
    return loaded.status === "io_error" ? "error" : "unserved";
  }

  /**
   * Reads a block into the caller's `region` and verifies it. The block does not enter RAM. It is
   * not locked and may be removed during the read.
   */
  scrub(node: NodeId, region: Region): Promise<Verdict> {
    const { files, disk } = this.#parts;
    return this.#verdict(node, "scrub", { region, offset: 0 }, async (header, place) => {
      const path = files.pathOf(node);
      const expected = files.expected(node);
      const { bytes } = expected;
      this.#room.watch(node);
      const loaded = await disk.load({ path, header, ...place, bytes });
      // The file of a removed block may be overwritten during the read, even if a new file of the
      // same name exists by now.
      if (this.#room.hasLeft) return "unserved";
      if (loaded.ok) {
        const decoded = decodeHeader(header.bytes);
        return this.#judge(path, await this.#faultOf(node, decoded, loaded, expected, place));
      }
      if (loaded.status === "short") return tooShort(path);
      if (loaded.status !== "io_error") return "unserved";
      // Do not report this error to the circuit breaker: one decayed block does not mean that the
      // disk is broken.
      this.#parts.stats.readErrors++;
      return "error";
    });
  }

  /**
   * Returns the reason to reject bytes read from SSD, or null. No other code accepts such bytes.
   */
  async #faultOf(
    node: NodeId,
    decoded: DecodedHeader,
    read: ReadFile,
    expected: ExpectedBlock,
    { region, offset }: Destination,
  ): Promise<ReadFault | null> {
    const { macs, table, incarnation } = this.#parts;
    const fault = faultOfRead(decoded, read, expected, incarnation);
    if (fault !== null || !decoded.ok) return fault;
    const { bytes, digest, layer } = expected;
    const block = () => ({ region, offset, bytes, digest, layer });
    const mac = decoded.header.mac ?? NO_MAC;
    const why = await macs.faultLater(table.namespaceOf(node), mac, block);
    return why === null ? null : damaged(why);
  }

  #judge(path: string, fault: ReadFault | null): Judged {
    if (fault === null) return "ok";
    if (!fault.isStale) return { path, ...fault };
    this.#parts.log("info", "block on SSD has a stale generation", { path });
    return "stale";
  }
}

/** Allocates memory outside the arena for a block. Returns null if the host has none now. */
function tryRegion(native: Native, bytes: number): Region | null {
  const rounded = Math.ceil(bytes / PAGE) * PAGE;
  try {
    return Region.create(native, { bytes: rounded, hugePages: "off", lockMemory: "off" });
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    return null;
  }
}

function tooShort(path: string): Damage {
  return { path, why: "file too short", isOwnPayload: false };
}

/** Reads all blocks on SSD at the lowest priority, to find decayed blocks before a reader does. */
export class SsdScrub extends Scrub {
  readonly #parts: SsdParts;
  readonly #reader: BlockReader;
  readonly #native: Native;
  #region: Region | null = null;
  #last: NodeId = NO_NODE;

  constructor(parts: SsdParts, reader: BlockReader, native: Native) {
    super(parts.clock);
    this.#parts = parts;
    this.#reader = reader;
    this.#native = native;
  }

  protected async next(): Promise<number> {
    const { table, stats, ioSlots } = this.#parts;
    if (ioSlots.running > 0 && ioSlots.waiting("read") > 0) return 0;
    this.#last = table.nextOn(this.#last, Tier.ssd);
    if (this.#last === NO_NODE) return 0;
    const bytes = table.bytesOf(this.#last);
    const region = this.#regionFor(bytes);
    if (region === null) return 0;
    const verdict = await this.#reader.scrub(this.#last, region);
    if (verdict === "unserved") return 0;
    if (verdict === "bad_memory") {
      region[Symbol.dispose]();
      this.#region = null;
    }
    stats.scrubbedBlocks++;
    stats.scrubbedBytes += bytes;
    return bytes;
  }

  /** Returns memory for a block of this size; null if the host has none now. */
  #regionFor(bytes: number): Region | null {
    if (this.#region !== null && this.#region.bytes >= bytes) return this.#region;
    this.#region?.[Symbol.dispose]();
    this.#region = null;
    this.#region = tryRegion(this.#native, bytes);
    return this.#region;
  }

  /**
   * Stops the scrub. Waits at most `ms` milliseconds for a read in progress. If the read still
   * hangs then, its memory is not freed.
   */
  async stop(ms: number): Promise<void> {
    const late = Promise.withResolvers<boolean>();
    using _timer = this.clock.after(ms, () => late.resolve(false));
    const over = this.end().then(() => true);
    if (await Promise.race([over, late.promise])) this.#region?.[Symbol.dispose]();
  }
}
