import {
  type NamespaceIndex,
  NO_NODE,
  seededRandom,
  systemClock,
  type WorkerId,
} from "../../src/core/index.ts";
import { loadNative, nativeBuffer, openDisk, Queue, Region } from "../../src/native/index.ts";
import { Tier } from "../../src/store/blocks/index.ts";
import { type BlockIndex, openBlockIndex } from "../../src/store/index/index.ts";
import {
  type AddressBatch,
  BlockOutcome,
  createAddressBatch,
  createHandleBatch,
  type EngineSession,
  type HandleBatch,
  Namespaces,
  type SsdSettings,
  TieredStore,
} from "../../src/store/index.ts";
import { type ClaimedFolder, claimFolder } from "../../src/store/kvb/index.ts";
import type { Block, Round } from "./blocks.ts";

const MIB = 2 ** 20;
/** Room for an extent of each length that rounds use. */
const ARENA_BYTES = 6 * 64 * MIB;
const BATCH_MAX = 1024;
export const NAMESPACE_KEY = new Uint8Array(32).fill(0x4e);

/**
 * What a reader got. `caught`: bytes that are not those of the checksum that came with them;
 * `wrong`: bytes that passed for right.
 */
export type Got = "right" | "wrong" | "caught" | "miss" | "unserved";

/** Arena and threads, which many stores may use one after the other. */
export class Host implements AsyncDisposable {
  readonly native = loadNative();
  readonly region = Region.create(this.native, {
    bytes: ARENA_BYTES,
    hugePages: "off",
    lockMemory: "off",
  });
  readonly queue = new Queue(this.native, { entries: 64, threads: 2, watches: 8 });
  #runs = 0n;

  /** A number that no other run of a store has. */
  nextRun(): bigint {
    return ++this.#runs;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.queue[Symbol.asyncDispose]();
    this.region[Symbol.dispose]();
  }
}

const SILENT = { raise: () => undefined, clear: () => undefined };

/** A store with its SSD tier on a folder, and an engine: what an agent opens, without a process. */
export class Rig implements AsyncDisposable {
  readonly store: TieredStore;
  readonly index: BlockIndex;
  readonly #host: Host;
  readonly #folder: ClaimedFolder;
  readonly #holder: EngineSession;

  private constructor(host: Host, folder: ClaimedFolder, store: TieredStore, index: BlockIndex) {
    this.#host = host;
    this.#folder = folder;
    this.store = store;
    this.index = index;
    const namespace = 1 as NamespaceIndex;
    this.#holder = store.openEngineSession({ namespace, handlesMax: BATCH_MAX });
  }

  static async open(
    host: Host,
    dir: string,
    writePolicy: SsdSettings["writePolicy"] = "write_through",
  ): Promise<Rig> {
    const { native, region, queue } = host;
    const clock = systemClock;
    const folder = claimFolder({ native, dir, worker: "w" as WorkerId, machine: null, clock });
    const incarnation = host.nextRun();
    const owner = { worker: "w", machine: "", store: folder.owner.created };
    const index = await openBlockIndex({ folder: `${dir}/index`, incarnation, owner, clock });
    const opened = await openDisk(native, {
      folder: dir,
      arena: region,
      depth: 64,
      method: "auto",
    });
    const store = new TieredStore({
      ...{ native, region, queue, clock },
      random: seededRandom(7),
      blocksMax: 16_384,
      gpuWindowBlocks: 0,
      marks: { high: 1, low: 1 },
      policy: "lru",
    });
    store.slots.addReady(region.bytes);
    const namespaces = new Namespaces();
    namespaces.indexOf(NAMESPACE_KEY);
    await store.openSsd({
      ...{ disk: opened, index, namespaces, incarnation, writePolicy },
      ttlMs: null,
      scrubBytesPerS: 0,
      capacityBytes: 4096 * MIB,
      writeQueueBytes: 512 * MIB,
      readDeadlineMs: 60_000,
      health: SILENT,
      log: () => undefined,
    });
    return new Rig(host, folder, store, index);
  }

  /** Stores every block of the round in RAM; throws where one is refused. */
  async put(round: Round): Promise<HandleBatch> {
    const batch = this.#batchOf(round);
    this.store.deriveKeys(batch, true);
    const out = createHandleBatch(batch.capacity);
    this.#holder.reserve(batch, out);
    for (const [i, { bytes, seed }] of round.blocks.entries()) {
      expectOutcome(out, i, "reserve");
      this.#host.region.fill(out.offset[i]!, bytes, seed);
    }
    await this.#holder.commit(out);
    for (const i of round.blocks.keys()) expectOutcome(out, i, "commit");
    return out;
  }

  /** Has every block of RAM on SSD and, after that, there alone. */
  async moveToSsd(): Promise<void> {
    const { store } = this;
    const { skipped } = await store.ssd!.persist();
    if (skipped > 0) throw new Error(`${skipped} blocks were not written`);
    this.leaveRam();
  }

  /** Drops every block from RAM, leaves first. */
  leaveRam(): void {
    const { table, ram } = this.store;
    for (let node = table.oldest(Tier.ram); node !== NO_NODE; node = table.oldest(Tier.ram)) {
      ram.drop(node);
    }
    const left = table.residentBlocks(Tier.ram);
    if (left > 0) throw new Error(`${left} blocks cannot leave RAM`);
  }

  /** Asks for every block of the round, and does with the bytes what a client does. */
  async get(round: Round): Promise<Got[]> {
    const batch = this.#batchOf(round);
    this.store.deriveKeys(batch, false);
    const options = { tiers: 0, deadlineMs: 60_000, stopAtMiss: false };
    const out = createHandleBatch(batch.capacity);
    const answer = (await this.#holder.acquire(batch, options, out)) ?? out;
    const got = round.blocks.map((block, i) => this.#judge(block, answer, i));
    const granted = got.flatMap((one, i) => (one === "miss" || one === "unserved" ? [] : [i]));
    this.#release(answer, granted);
    return got;
  }

  #judge({ bytes, seed }: Block, answer: HandleBatch, i: number): Got {
    const outcome = answer.outcome[i];
    if (outcome === BlockOutcome.miss) return "miss";
    if (outcome !== BlockOutcome.ok) return "unserved";
    const { region } = this.#host;
    const length = answer.bytes[i]!;
    const sum = region.copyOut(answer.offset[i]!, COPY, length, true);
    // As a client's `get`: what it copied must have the checksum that came with the handle.
    if (sum !== answer.checksum[i]) return "caught";
    if (length !== bytes) return "wrong";
    return region.firstWrong(answer.offset[i]!, bytes, seed) === null ? "right" : "wrong";
  }

  #release(answer: HandleBatch, places: readonly number[]): void {
    if (places.length === 0) return;
    const handles = createHandleBatch(places.length);
    handles.count = places.length;
    for (const [at, i] of places.entries()) {
      handles.slot[at] = answer.slot[i]!;
      handles.generation[at] = answer.generation[i]!;
    }
    this.#holder.release(handles);
  }

  #batchOf({ layer, blocks }: Round): AddressBatch {
    const batch = createAddressBatch(blocks.length);
    batch.count = blocks.length;
    batch.layer = layer;
    for (const [i, { digest, parent, bytes }] of blocks.entries()) {
      batch.digests.set(digest, i * 32);
      if (parent !== null) batch.parents.set(parent, i * 32);
      batch.bytes[i] = bytes;
    }
    return batch;
  }

  /** Flips bits of a block that lies in RAM. */
  flipInRam(handles: HandleBatch, i: number, at: number, mask: number): void {
    const { region } = this.#host;
    const where = handles.offset[i]! + at;
    region.copyOut(where, ONE_BYTE, 1, false);
    ONE_BYTE.bytes[0]! ^= mask;
    region.copyIn(where, ONE_BYTE, 1, false);
  }

  /** Ends cleanly, as a drained agent does. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#holder.abandon();
    this.#holder.buried();
    await this.store.ssd!.room.removals.settled();
    await this.store[Symbol.asyncDispose]();
    const closed = await this.index.close(60_000);
    this.#folder[Symbol.dispose]();
    if (!closed) throw new Error("the index could not be closed");
  }
}

const COPY = nativeBuffer(65_536);
const ONE_BYTE = nativeBuffer(1);

function expectOutcome(out: HandleBatch, i: number, what: string): void {
  const outcome = out.outcome[i];
  if (outcome !== BlockOutcome.ok) throw new Error(`${what} of block ${i}: outcome ${outcome}`);
}
