import { type Clock, DIGEST_BYTES, NO_NODE, type NodeId, sleep, toHex } from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import { Tier } from "./blocks/index.ts";
import { checksumLater, checksumOf, macBlockOf } from "./reservation.ts";
import type { TieredStore } from "./tiered-store.ts";

/** What led to a check; the causes of damage that was found are counted apart. */
export const RAM_FINDERS = ["report", "write", "scrub", "file", "read", "peer", "gpu"] as const;
export type RamFinder = (typeof RAM_FINDERS)[number];

/**
 * `sound`: the bytes are those that were committed. `damaged`: they are not, and the block has left
 * RAM. `gone`: the block left its slot before that was known, or the agent is stopping.
 */
export type RamVerdict = "sound" | "damaged" | "gone";

/** One block in RAM that was damaged, as its health code and the log tell. */
export interface RamDamage {
  readonly found: RamFinder;
  /** Damaged blocks since the start, this one included. */
  readonly count: number;
  /** First bytes of the block's digest, in hex. */
  readonly digest: string;
  /** Where the block lay in the arena; null: in other memory of the agent. */
  readonly offset: number | null;
  readonly bytes: number;
}

/** What checks counted since the start. */
export interface RamCheckStats {
  readonly damaged: Record<RamFinder, number>;
  /** Reports of readers: the bytes in RAM were right; and reports that were not looked into. */
  falseReports: number;
  skippedReports: number;
  /** Reports of blocks with a MAC that this agent cannot verify, for lack of the key: they stay. */
  unknownReports: number;
  /** Blocks that a reader reported and whose MAC is wrong: dropped, on SSD, too. */
  plantedBlocks: number;
  scrubbedBlocks: number;
  scrubbedBytes: number;
}

/** Bytes of right blocks that one connection may have hashed: a second of it, and at once. */
const REPORT_BYTES_PER_S = 16 * 2 ** 20;
const REPORT_BYTES_AT_ONCE = 256 * 2 ** 20;
/** Reports that wait for their turn. */
const REPORTS_WAITING_MAX = 4_096;
const DIGEST_SHOWN_BYTES = 8;

/** Bytes that may be hashed: so many a second, and so many at once. */
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

  /** Takes what one hash costs; false where the budget is used up. */
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

/** What the false reports of one connection may still cost. A report that was right is free. */
export class ReportBudget extends HashBudget {
  constructor(clock: Clock) {
    super(clock, REPORT_BYTES_PER_S, REPORT_BYTES_AT_ONCE);
  }
}

/**
 * Hashes blocks in RAM on native threads, and takes those that are damaged out of RAM. A check
 * locks nothing: it changes no recency, and a block that left its slot meanwhile is not judged.
 */
export class RamCheck {
  /** Called for each damaged block, after it has left RAM. */
  onDamage: (damage: RamDamage) => void = () => undefined;
  readonly stats: RamCheckStats = {
    damaged: { report: 0, write: 0, scrub: 0, file: 0, read: 0, peer: 0, gpu: 0 },
    ...{ falseReports: 0, skippedReports: 0, unknownReports: 0, plantedBlocks: 0 },
    ...{ scrubbedBlocks: 0, scrubbedBytes: 0 },
  };
  readonly #store: TieredStore;
  /** By slot. The bytes of one slot are hashed once at a time. */
  readonly #checks = new Map<number, { generation: number; verdict: Promise<RamVerdict> }>();
  /** Reports are looked into one after the other: together they keep one thread busy at most. */
  #reports: Promise<unknown> = Promise.resolve();
  #reportsWaiting = 0;

  constructor(store: TieredStore) {
    this.#store = store;
  }

  /** Blocks that were damaged in RAM since the start. */
  get damagedBlocks(): number {
    return Object.values(this.stats.damaged).reduce((sum, count) => sum + count, 0);
  }

  /** Whether the block's bytes in RAM are right; a block that is not in RAM is `gone`. */
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
    const wanted = checksumOf(table, node);
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
   * A reader's copy of what lies in this slot did not verify. `damaged`, too, where the block has
   * been dropped since the reader got it.
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
    // The reader's lock kept it in RAM: only damage takes it out from under a reader.
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

  /** Its memory is sound: the block leaves every tier, so that the right one may be written. */
  #dropPlanted(node: NodeId): void {
    const { table, ram, ssd } = this.#store;
    this.stats.plantedBlocks++;
    if (table.isKept(node)) this.#store.tellLost(node, "its MAC was wrong");
    ssd?.writer.sourceDamaged(node);
    ssd?.replaced(node);
    ram.condemn(node);
  }

  /** The place in RAM to which the block was read changes what is written there. */
  placeDamaged(node: NodeId, offset: number | null): void {
    const bytes = this.#store.table.bytesOf(node);
    this.stats.damaged.read++;
    const digest = this.#shown(node);
    this.onDamage({ found: "read", count: this.damagedBlocks, digest, offset, bytes });
  }

  /** The first bytes of its digest. */
  #shown(node: NodeId): string {
    const digest = new Uint8Array(DIGEST_BYTES);
    this.#store.table.readDigest(node, digest, 0);
    return toHex(digest.subarray(0, DIGEST_SHOWN_BYTES));
  }

  /** Readers keep the slot until they release it; nobody else gets the block from it. */
  #drop(node: NodeId, found: RamFinder, span: { offset: number; bytes: number }): void {
    const store = this.#store;
    const { table, ram, ssd } = store;
    this.stats.damaged[found]++;
    // The node may be gone when it has left RAM.
    const digest = this.#shown(node);
    ssd?.writer.sourceDamaged(node);
    const isLost = table.isKept(node) && !table.isResident(node, Tier.ssd);
    if (isLost) store.tellLost(node, "its bytes in RAM were damaged");
    ram.condemn(node);
    this.onDamage({ found, count: this.damagedBlocks, digest, ...span });
  }
}

const IDLE_MS = 1_000;
/** Entries of the table looked at in one turn. */
const IDS_AT_ONCE = 65_536;

/**
 * Hashes everything in RAM over and over, to find damaged memory before a reader does: one block at
 * a time on a native thread, at so many bytes a second on average. Slots that are being written are
 * not blocks yet, and are left alone.
 */
export class RamScrub implements AsyncDisposable {
  readonly #store: TieredStore;
  readonly #clock: Clock;
  readonly #stop = new AbortController();
  #bytesPerS = 0;
  #last: NodeId = NO_NODE;
  #running: Promise<void> | null = null;

  constructor(store: TieredStore) {
    this.#store = store;
    this.#clock = store.clock;
  }

  /** 0 pauses. */
  setRate(bytesPerS: number): void {
    this.#bytesPerS = bytesPerS;
    this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const bytes = this.#bytesPerS === 0 ? 0 : await this.#next();
      const waitMs = bytes === 0 ? IDLE_MS : (bytes / this.#bytesPerS) * 1_000;
      await sleep(this.#clock, waitMs, signal).catch(() => undefined);
    }
  }

  /** Hashes the next block; its bytes, 0 where a round is over. */
  async #next(): Promise<number> {
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
    this.#stop.abort();
    await this.#running;
  }
}
