import { type Clock, NO_NODE, type NodeId, sleep, toHex } from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import { Tier } from "./blocks/index.ts";
import { checksumLater, macBlockOf } from "./reservation.ts";
import type { TieredStore } from "./tiered-store.ts";

/** Events that trigger a check of a block in RAM. Damage is counted by event. */
const RAM_FINDERS = ["report", "write", "scrub", "file", "read", "peer", "gpu"] as const;
type RamFinder = (typeof RAM_FINDERS)[number];

/**
 * `sound`: the bytes match the committed checksum. `damaged`: they do not match, and the block was
 * removed from RAM. `gone`: the block left its slot during the check, or the agent is stopping.
 */
export type RamVerdict = "sound" | "damaged" | "gone";

/** A damaged block in RAM, for the health code and the log. */
interface RamDamage {
  readonly found: RamFinder;
  /** Number of damaged blocks since the agent started, this one included. */
  readonly count: number;
  /** First 8 bytes of the block's digest, in hex. */
  readonly digest: string;
  /** Byte offset of the block in the arena; null if the block was in other memory of the agent. */
  readonly offset: number | null;
  readonly bytes: number;
}

/** Counters of the checks of blocks in RAM, since the agent started. */
export interface RamCheckStats {
  readonly damaged: Record<RamFinder, number>;
  /**
   * Reports from readers about blocks whose bytes in RAM were correct, and reports that were not
   * checked.
   */
  falseReports: number;
  skippedReports: number;
  /** Reports about blocks with a MAC for which this agent has no key. The blocks stay in RAM. */
  unknownReports: number;
  /** Reported blocks whose MAC was wrong. They were removed from RAM and SSD. */
  plantedBlocks: number;
  scrubbedBlocks: number;
  scrubbedBytes: number;
}

/**
 * Limits on hashing for false reports of one connection: bytes per second, and bytes in a burst.
 */
const REPORT_BYTES_PER_S = 16 * 2 ** 20;
const REPORT_BYTES_AT_ONCE = 256 * 2 ** 20;
/** Maximum number of reports that wait for a check. */
const REPORTS_WAITING_MAX = 4_096;
const DIGEST_SHOWN_BYTES = 8;

/** Token bucket that limits how many bytes are hashed: a rate per second and a burst. */
export class HashBudget {
  readonly #clock: Clock;
  readonly #bytesPerS: number;
  readonly #bytesMax: number;
  #bytes: number;
  #atMs: number;

  constructor(clock: Clock, bytesPerS: number, bytesMax: number) {
    this.#clock = clock;
    this.#bytesPerS = bytesPerS;
    this.#bytesMax = bytesMax;
    this.#bytes = bytesMax;
    this.#atMs = clock.monotonicMs();
  }

  /** Takes `bytes` from the bucket. Returns false if the bucket has too few. */
  take(bytes: number): boolean {
    const nowMs = this.#clock.monotonicMs();
    const came = ((nowMs - this.#atMs) * this.#bytesPerS) / 1_000;
    this.#atMs = nowMs;
    this.#bytes = Math.min(this.#bytesMax, this.#bytes + came);
    if (this.#bytes <= 0) return false;
    this.#bytes -= bytes;
    return true;
  }

  giveBack(bytes: number): void {
    this.#bytes += bytes;
  }
}

/**
 * Hash budget for the reports of one connection about correct blocks. A report of a damaged block
 * costs nothing.
 */
export class ReportBudget extends HashBudget {
  constructor(clock: Clock) {
    super(clock, REPORT_BYTES_PER_S, REPORT_BYTES_AT_ONCE);
  }
}

/**
 * Hashes blocks in RAM on native threads and removes damaged ones from RAM. A check takes no lock
 * and does not count as a use of the block. If the block leaves its slot during the check, the
 * verdict is `gone`.
 */
export class RamCheck {
  /** Called for each damaged block, after the block was removed from RAM. */
  onDamage: (damage: RamDamage) => void = () => undefined;
  readonly stats: RamCheckStats = {
    damaged: { report: 0, write: 0, scrub: 0, file: 0, read: 0, peer: 0, gpu: 0 },
    falseReports: 0,
    skippedReports: 0,
    unknownReports: 0,
    plantedBlocks: 0,
    scrubbedBlocks: 0,
    scrubbedBytes: 0,
  };
  readonly #store: TieredStore;
  /** Checks in progress by slot number. A slot has at most one. */
  readonly #checks = new Map<number, { generation: number; verdict: Promise<RamVerdict> }>();
  /**
   * Resolves when the latest report has been checked. Reports are checked one after another, so
   * that together they occupy at most one thread.
   */
  #reports: Promise<unknown> = Promise.resolve();
  #reportsWaiting = 0;

  constructor(store: TieredStore) {
    this.#store = store;
  }

  /** Number of blocks found damaged in RAM since the agent started. */
  get damagedBlocks(): number {
    return Object.values(this.stats.damaged).reduce((sum, count) => sum + count, 0);
  }

  /** Checks the block's bytes in RAM. The verdict is `gone` if the block is not in RAM. */
  check(node: NodeId, found: RamFinder): Promise<RamVerdict> {
    const { table } = this.#store;
    if (!table.isResident(node, Tier.ram)) return Promise.resolve("gone");
    const slot = table.slotOf(node);
    const generation = table.slotGenerationOf(node);
    const known = this.#checks.get(slot);
    if (known?.generation === generation) return known.verdict;
    const verdict = this.#check(node, found).finally(() => {
      if (this.#checks.get(slot)?.verdict === verdict) this.#checks.delete(slot);
    });
    this.#checks.set(slot, { generation, verdict });
    return verdict;
  }

  async #check(node: NodeId, found: RamFinder): Promise<RamVerdict> {
    const store = this.#store;
    const { table, slots } = store;
    const nodeGeneration = table.generationOf(node);
    const slot = table.slotOf(node);
    const generation = table.slotGenerationOf(node);
    const wanted = table.checksumOf(node);
    const span = { offset: slots.offsetOf(slot), bytes: table.bytesOf(node) };
    const isThere = () =>
      table.isLive(node, nodeGeneration) &&
      table.isResident(node, Tier.ram) &&
      table.slotOf(node) === slot &&
      table.slotGenerationOf(node) === generation;
    const checksum = await checksumLater(store, span);
    if (checksum === null || !isThere()) return "gone";
    if (checksum === wanted) return "sound";
    this.#drop(node, found, span);
    return "damaged";
  }

  /**
   * Checks a block whose copy failed verification at a reader. The verdict is also `damaged` if the
   * block was removed from RAM after the reader acquired it.
   */
  async report(
    node: NodeId,
    read: { readonly slot: number; readonly generation: number },
    budget: ReportBudget,
  ): Promise<RamVerdict> {
    const { table } = this.#store;
    const isThere = () =>
      table.isResident(node, Tier.ram) &&
      table.slotOf(node) === read.slot &&
      table.slotGenerationOf(node) === read.generation;
    // The reader's lock kept the block in RAM, so only damage can have removed it.
    if (!isThere()) return "damaged";
    const bytes = table.bytesOf(node);
    const nodeGeneration = table.generationOf(node);
    if (this.#reportsWaiting === REPORTS_WAITING_MAX || !budget.take(bytes)) {
      this.stats.skippedReports++;
      return "gone";
    }
    this.#reportsWaiting++;
    const verdict = this.#reports.then(() => {
      if (!table.isLive(node, nodeGeneration) || !isThere()) return "gone";
      return this.check(node, "report");
    });
    this.#reports = verdict.catch(() => undefined);
    let came = await verdict;
    this.#reportsWaiting--;
    const mac = came === "sound" ? await this.#judgeMac(node) : null;
    if (mac === "planted" && isThere()) {
      this.#dropPlanted(node);
      came = "damaged";
    }
    if (came !== "sound") budget.giveBack(bytes);
    else if (mac === "unknown") this.stats.unknownReports++;
    else this.stats.falseReports++;
    return came;
  }

  #judgeMac(node: NodeId): Promise<"right" | "planted" | "unknown"> {
    const { table, slots, macs } = this.#store;
    const mac = new Uint8Array(MAC_BYTES);
    table.readMac(node, mac);
    const offset = slots.offsetOf(table.slotOf(node));
    const block = () => macBlockOf(this.#store, node, offset, table.bytesOf(node));
    return macs.judge(table.namespaceOf(node), mac, block);
  }

  /**
   * Removes a block with a wrong MAC from every tier, so that an engine can write the correct
   * block. The block's memory is not counted as damaged.
   */
  #dropPlanted(node: NodeId): void {
    const { table, ram, ssd } = this.#store;
    this.stats.plantedBlocks++;
    if (table.isKept(node)) this.#store.reportLost(node, "wrong MAC");
    ssd?.writer.sourceDamaged(node);
    ssd?.replaced(node);
    ram.condemn(node);
  }

  /**
   * Records that the memory to which a block was read from SSD is damaged: the bytes differed after
   * they were written there.
   */
  placeDamaged(node: NodeId, offset: number | null): void {
    const bytes = this.#store.table.bytesOf(node);
    this.stats.damaged.read++;
    const digest = this.#shown(node);
    this.onDamage({ found: "read", count: this.damagedBlocks, digest, offset, bytes });
  }

  /** Returns the first 8 bytes of the block's digest, in hex. */
  #shown(node: NodeId): string {
    return toHex(this.#store.table.digestOf(node).subarray(0, DIGEST_SHOWN_BYTES));
  }

  /**
   * Removes the block from RAM. Readers keep the slot until they release it; later requests for the
   * block are misses.
   */
  #drop(node: NodeId, found: RamFinder, span: { offset: number; bytes: number }): void {
    const store = this.#store;
    const { table, ram, ssd } = store;
    this.stats.damaged[found]++;
    // Read the digest first: if this was the block's last copy, the node is removed with it.
    const digest = this.#shown(node);
    ssd?.writer.sourceDamaged(node);
    const isLost = table.isKept(node) && !table.isResident(node, Tier.ssd);
    if (isLost) store.reportLost(node, "bytes in RAM damaged");
    ram.condemn(node);
    this.onDamage({ found, count: this.damagedBlocks, digest, ...span });
  }
}

const IDLE_MS = 1_000;

/**
 * Base class of the scrubs: verifies stored blocks in rounds, one block at a time, at a limited
 * average rate.
 */
export abstract class Scrub {
  protected readonly clock: Clock;
  readonly #stop = new AbortController();
  #bytesPerS = 0;
  #running: Promise<void> | null = null;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /**
   * Verifies the next block. Returns the number of bytes verified, or 0 if there is nothing to
   * verify now.
   */
  protected abstract next(): Promise<number>;

  /** Sets the rate in bytes per second; 0 pauses the scrub. */
  setRate(bytesPerS: number): void {
    this.#bytesPerS = bytesPerS;
    this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const bytes = this.#bytesPerS === 0 ? 0 : await this.next();
      const waitMs = bytes === 0 ? IDLE_MS : (bytes / this.#bytesPerS) * 1_000;
      await sleep(this.clock, waitMs, signal).catch(() => undefined);
    }
  }

  /** Stops the scrub. Resolves when the block being verified is done. */
  protected async end(): Promise<void> {
    this.#stop.abort();
    await this.#running;
  }
}

/** Block table entries visited in one turn of the event loop. */
const IDS_AT_ONCE = 65_536;

/**
 * Hashes all blocks in RAM on a native thread, to find damaged memory before a reader does. Skips
 * slots that are being written.
 */
export class RamScrub extends Scrub implements AsyncDisposable {
  readonly #store: TieredStore;
  #last: NodeId = NO_NODE;

  constructor(store: TieredStore) {
    super(store.clock);
    this.#store = store;
  }

  protected async next(): Promise<number> {
    const { table, checks } = this.#store;
    const node = this.#nextNode();
    if (node === NO_NODE) return 0;
    const bytes = table.bytesOf(node);
    await checks.check(node, "scrub");
    checks.stats.scrubbedBlocks++;
    checks.stats.scrubbedBytes += bytes;
    return bytes;
  }

  #nextNode(): NodeId {
    const { table } = this.#store;
    const end = this.#last + IDS_AT_ONCE;
    const node = table.nextOn(this.#last, Tier.ram, end);
    const isOver = node === NO_NODE && end > table.nodesMax;
    this.#last = node === NO_NODE && !isOver ? ((end - 1) as NodeId) : node;
    return node;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
  }
}
