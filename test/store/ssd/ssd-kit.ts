import { cpSync, mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import {
  type Clock,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
  seededRandom,
} from "../../../src/core/index.ts";
import {
  type BlockDisk,
  loadNative,
  type Native,
  openDisk,
  Queue,
  Region,
} from "../../../src/native/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { type BlockIndex, openBlockIndex } from "../../../src/store/index/index.ts";
import {
  type ArenaPart,
  Namespaces,
  type PolicyName,
  type SsdCondition,
  type SsdSettings,
  TieredStore,
} from "../../../src/store/index.ts";
import { blockPath } from "../../../src/store/kvb/index.ts";
import { endlessTurns, ManualClock, waitFor } from "../../support/index.ts";
import { type BlockName, batchOf } from "../names.ts";
import { StoreEngine } from "../store-engine.ts";
import { verifyStore } from "../verify-store.ts";

type SsdTier = NonNullable<TieredStore["ssd"]>;
type RecoveryReport = Awaited<ReturnType<TieredStore["openSsd"]>>;

/** Size of a block of `BLOCK_BYTES`: its slot in RAM, and its file. */
export const SLOT_BYTES = 8192;
export const FILE_BYTES = 4096 + 8192;

const TICK_MS = 250;

export type Method = "threads" | "io_uring";

export interface SsdKitOptions extends Partial<SsdSettings> {
  readonly dir: string;
  /** Number of blocks of `BLOCK_BYTES` that fit in RAM. */
  readonly slots?: number;
  readonly method?: Method;
  readonly depth?: number;
  readonly capacityBytes?: number;
  readonly writeQueueBytes?: number;
  readonly readDeadlineMs?: number;
  readonly blocksMax?: number;
  readonly policy?: PolicyName;
  readonly parts?: readonly ArenaPart[];
  /** MAC keys by identifier. */
  readonly macKeys?: ReadonlyMap<string, Uint8Array>;
  readonly clock?: ManualClock;
  /** The native library that the store uses. */
  readonly native?: Native;
  /** Fills RAM before the tier is opened. */
  readonly adopt?: (store: TieredStore, namespaces: Namespaces) => void;
  /** Replaces the SQLite index in the folder. */
  readonly openIndex?: (dir: string, run: bigint, clock: Clock) => Promise<BlockIndex>;
}

/** Arena and threads, used by one store after another. */
export class SsdHost implements AsyncDisposable {
  readonly native: Native = loadNative();
  readonly queue = new Queue(this.native, { entries: 64, threads: 2, watches: 8 });
  readonly #regions = new Map<number, Region>();

  region(bytes: number): Region {
    let region = this.#regions.get(bytes);
    if (region === undefined) {
      region = Region.create(this.native, { bytes, hugePages: "off", lockMemory: "off" });
      this.#regions.set(bytes, region);
    }
    return region;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.queue[Symbol.asyncDispose]();
    for (const region of this.#regions.values()) region[Symbol.dispose]();
  }
}

/** Health conditions raised by a tier, and how often each one was raised. */
export class HealthRecord {
  readonly raised = new Set<SsdCondition>();
  readonly times = new Map<SsdCondition, number>();
  readonly #clock: Clock;
  readonly #ends = new Map<SsdCondition, Disposable>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  raise(condition: SsdCondition, _detail: string, { forMs }: { forMs?: number } = {}): void {
    this.#ends.get(condition)?.[Symbol.dispose]();
    if (forMs !== undefined) {
      const end = this.#clock.after(forMs, () => this.clear(condition));
      this.#ends.set(condition, end);
    }
    if (this.raised.has(condition)) return;
    this.raised.add(condition);
    this.times.set(condition, (this.times.get(condition) ?? 0) + 1);
  }

  clear(condition: SsdCondition): void {
    this.raised.delete(condition);
  }
}

let runs = 0n;

function openOwnIndex(dir: string, incarnation: bigint, clock: Clock): Promise<BlockIndex> {
  const owner = { worker: "w", machine: "m", store: "s" };
  return openBlockIndex({ folder: join(dir, "index"), incarnation, owner, clock });
}

const arenaBytes = ({ slots = 8 }: SsdKitOptions) => slots * SLOT_BYTES;

function openStore(
  host: SsdHost,
  options: SsdKitOptions,
  clock: Clock,
  namespaces: Namespaces,
): TieredStore {
  const { queue, native: own } = host;
  const { native = own } = options;
  const region = host.region(arenaBytes(options));
  const store = new TieredStore({
    ...{ native, region, queue, clock, namespaces },
    random: seededRandom(7),
    blocksMax: options.blocksMax ?? 1_024,
    gpuWindowBlocks: 16,
    marks: { high: 1, low: 1 },
    policy: options.policy ?? "lru",
    parts: options.parts ?? [],
    turns: endlessTurns,
    macKeys: options.macKeys ?? new Map(),
  });
  store.slots.addReady(region.bytes);
  return store;
}

/** A store with real files and real memory, on a manual clock. */
export class SsdKit implements AsyncDisposable {
  readonly store: TieredStore;
  readonly clock: ManualClock;
  readonly index: BlockIndex;
  readonly disk: BlockDisk;
  readonly dir: string;
  readonly health: HealthRecord;
  readonly namespaces: Namespaces;
  readonly logged: string[];
  readonly incarnation: bigint;
  readonly report: RecoveryReport;
  readonly #engines: StoreEngine[] = [];
  #closing: Promise<boolean> | null = null;

  private constructor(parts: {
    store: TieredStore;
    clock: ManualClock;
    index: BlockIndex;
    disk: BlockDisk;
    dir: string;
    health: HealthRecord;
    namespaces: Namespaces;
    logged: string[];
    incarnation: bigint;
    report: RecoveryReport;
  }) {
    this.store = parts.store;
    this.clock = parts.clock;
    this.index = parts.index;
    this.disk = parts.disk;
    this.dir = parts.dir;
    this.health = parts.health;
    this.namespaces = parts.namespaces;
    this.logged = parts.logged;
    this.incarnation = parts.incarnation;
    this.report = parts.report;
  }

  static async open(host: SsdHost, options: SsdKitOptions): Promise<SsdKit> {
    const { dir } = options;
    const clock = options.clock ?? new ManualClock();
    const incarnation = ++runs;
    mkdirSync(dir, { recursive: true });
    await using opened = new AsyncDisposableStack();
    const index = await (options.openIndex ?? openOwnIndex)(dir, incarnation, clock);
    opened.defer(async () => void (await index.close(60_000)));
    const disk = await openDisk(host.native, {
      folder: dir,
      arena: host.region(arenaBytes(options)),
      depth: options.depth ?? 16,
      method: options.method ?? "threads",
      clock,
    });
    opened.use(disk);
    const namespaces = new Namespaces();
    for (let i = 1; i <= 3; i++) namespaces.indexOf(new Uint8Array(32).fill(i));
    const store = openStore(host, options, clock, namespaces);
    opened.use(store);
    const health = new HealthRecord(clock);
    const logged: string[] = [];
    options.adopt?.(store, namespaces);
    const report = await store.openSsd({
      ...{ disk, index, namespaces, incarnation, health },
      ttlMs: options.ttlMs ?? null,
      writePolicy: options.writePolicy ?? "write_through",
      scrubBytesPerS: options.scrubBytesPerS ?? 0,
      capacityBytes: options.capacityBytes ?? 1_000 * FILE_BYTES,
      writeQueueBytes: options.writeQueueBytes ?? 2 ** 30,
      readDeadlineMs: options.readDeadlineMs ?? 60_000,
      log: (level, text, fields) => logged.push(`${level} ${text} ${JSON.stringify(fields)}`),
    });
    opened.move();
    return new SsdKit({
      ...{ store, clock, index, disk, dir, health, namespaces, logged, incarnation, report },
    });
  }

  get ssd(): SsdTier {
    return this.store.ssd!;
  }

  engine(namespace = 1, handlesMax = 1_000): StoreEngine {
    const holder = this.store.openEngineSession({
      namespace: namespace as NamespaceIndex,
      handlesMax,
    });
    const engine = new StoreEngine(this.store, this.store.region, holder);
    this.#engines.push(engine);
    return engine;
  }

  /** Resolves when no read, write, scrub or trial is under way. */
  async settled(): Promise<void> {
    const { writer, reader, room } = this.ssd;
    do {
      await writer.settled();
      await reader.settled();
      await room.removals.settled();
      // Let the waiting callbacks run.
      await new Promise((resolve) => setImmediate(resolve));
    } while (writer.queuedBlocks + reader.reading + this.disk.inFlight > 0);
    await new Promise((resolve) => setImmediate(resolve));
  }

  /** Evicts all evictable blocks from RAM, so that they are on SSD only. */
  leaveRam(): void {
    const { table, ram } = this.store;
    for (let left = -1; left !== table.residentBlocks(Tier.ram); ) {
      left = table.residentBlocks(Tier.ram);
      for (let node = table.nextOn(NO_NODE, Tier.ram); node !== NO_NODE; ) {
        const next = table.nextOn(node, Tier.ram);
        if (!table.isProtected(node, Tier.ram) && table.isLeafOn(node, Tier.ram)) ram.drop(node);
        node = next;
      }
    }
    verifyStore(this.store);
  }

  /** The node of a known block. */
  nodeOf(name: BlockName): NodeId {
    const batch = batchOf([name]);
    this.store.deriveKeys(batch, false);
    return this.store.table.find(batch.keys, 0);
  }

  ssdHolds(name: BlockName): boolean {
    const node = this.nodeOf(name);
    return node !== NO_NODE && this.store.table.isResident(node, Tier.ssd);
  }

  /** Path of a block's file. */
  fileOf(name: BlockName, variant = 0): string {
    const batch = batchOf([name]);
    this.store.deriveKeys(batch, false);
    return join(this.dir, blockPath(batch.keyBytes, batch.layer, variant));
  }

  /**
   * Advances time in ticks of the tier, and lets the disk work between them. Otherwise a moment of
   * disk work would count as seconds.
   */
  async pass(ms: number): Promise<void> {
    for (let passed = 0; passed < ms; passed += TICK_MS) {
      await this.clock.advanceAsync(TICK_MS);
      await waitFor(() => this.disk.inFlight === 0);
    }
  }

  /** Advances time in ticks of the tier until the condition is true. */
  until(condition: () => boolean, what?: string): Promise<unknown> {
    return waitFor(
      async () => {
        await this.clock.advanceAsync(TICK_MS);
        return condition();
      },
      10_000,
      what,
    );
  }

  /** Paths of the block files below the folder. */
  files(folder = ""): string[] {
    return filesBelow(this.dir, folder);
  }

  /** Bytes allocated for block files, including quarantined ones. */
  allocatedBytes(): number {
    return allocatedBelow(this.dir);
  }

  /** A copy of the folder as a crash would leave it now. */
  crashImage(to: string): string {
    cpSync(this.dir, to, { recursive: true });
    return to;
  }

  /** Ends all engines and waits; then throws if a slot is in use, locked or lost. */
  async expectNothingLeft(): Promise<void> {
    for (const engine of this.#engines) engine.die();
    await this.settled();
    this.expectNothingHeld();
  }

  expectNothingHeld(): void {
    for (const engine of this.#engines) engine.die();
    const problems = this.problems();
    if (problems.length > 0) throw new Error(problems.join("; "));
  }

  /** Leaks: state that must be empty when no operation is under way and no engine is connected. */
  problems(): string[] {
    const { store, disk } = this;
    verifyStore(store);
    const { table } = store;
    const { slotsUsed, slotsQuarantined, ramBlocks } = store.snapshot();
    const problems: string[] = [];
    const note = (what: string, left: number) => {
      if (left !== 0) problems.push(`${left} ${what}`);
    };
    note("slots lost", slotsUsed - ramBlocks);
    note("slots quarantined", slotsQuarantined);
    for (const tier of [Tier.ram, Tier.ssd] as const) {
      // A session protects its blocks without an engine.
      if (store.sessions.size > 0) continue;
      note("protected blocks", table.residentBlocks(tier) - table.evictableBlocks(tier));
    }
    for (const { holder } of this.#engines) note("handles held", holder.held);
    note("operations in flight", disk.inFlight);
    note("bytes queued", this.ssd.writer.queuedBytes);
    note("bytes leaving", this.ssd.writer.leavingBytes);
    note("headers claimed", disk.depth - claimable(disk));
    return problems;
  }

  /** Shuts down like an agent. Returns whether the index recorded a clean end of the run. */
  close(): Promise<boolean> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<boolean> {
    await this.store[Symbol.asyncDispose]();
    return this.index.close(60_000);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

function claimable(disk: BlockDisk): number {
  const claimed = [];
  for (let slot = disk.claimHeader(); slot !== null; slot = disk.claimHeader()) claimed.push(slot);
  for (const slot of claimed) slot[Symbol.dispose]();
  return claimed.length;
}

/** Files of blocks, including quarantined ones, but not the probe file of the self-test. */
const BLOCK_FILE = /(?:^|\/)[0-9a-f]{16}-[^/]*\.kvb(?:\.[0-9a-z]+)?$/;

export function filesBelow(dir: string, folder = ""): string[] {
  return readdirSync(join(dir, folder), { recursive: true, encoding: "utf8" })
    .filter((path) => BLOCK_FILE.test(path))
    .map((path) => join(folder, path))
    .sort();
}

export function allocatedBelow(dir: string): number {
  let bytes = 0;
  for (const path of filesBelow(dir)) {
    const stat = statSync(join(dir, path), { throwIfNoEntry: false });
    bytes += (stat?.blocks ?? 0) * 512;
  }
  return bytes;
}
