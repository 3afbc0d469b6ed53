import {
  type NamespaceIndex,
  type Random,
  randomBelow,
  seededRandom,
  systemClock,
} from "../../../src/core/index.ts";
import { emptyEngineStats, GpuPlane } from "../../../src/engine/index.ts";
import {
  createPieceItems,
  GpuMemoryKind,
  Op,
  Outcome,
  type PieceItems,
} from "../../../src/engine/protocol/index.ts";
import { loadNative, Queue, Region } from "../../../src/native/index.ts";
import {
  createAddressBatch,
  createHandleBatch,
  type EngineSession,
  type HandleBatch,
  TieredStore,
} from "../../../src/store/index.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { FakeGpus } from "../../support/fake-gpus.ts";
import { ManualClock } from "../../support/index.ts";
import { must, type Saw, type Target } from "../target.ts";
import { Script } from "./script.ts";

const ARENA_BYTES = 2 ** 19;
/** The longest is hashed on another thread. */
const SIZES = [4_096, 4_096, 5_000, 270_000] as const;
const DIGESTS = 8;
const ENGINES = 3;
const UUID = new Uint8Array(16).fill(7);
const ALL = 0xffff_ffff;

interface Held {
  readonly name: number;
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  readonly bytes: number;
  /** Of a slot to be written: a copy to it was asked for; one did not do. */
  isCopied: boolean;
  isSpoilt: boolean;
}

/** An engine that only a GPU writes and reads for. */
interface Engine {
  readonly holder: EngineSession;
  readonly line: ReturnType<GpuPlane["open"]>;
  writing: Held[];
  reading: Held[];
  isOver: boolean;
  isDead: boolean;
}

/** Bytes of a block follow from its name and length. */
const seedOf = (name: number, bytes: number) => BigInt(name * 1_000_003 + bytes);

/**
 * Copies that end at any time and in any way, with engines that commit, abort, leave and die
 * meanwhile. The device writes when its copy ends, so a slot used again too early shows.
 */
class Copies {
  readonly #region: Region;
  readonly #store: TieredStore;
  readonly #gpus = new FakeGpus(UUID, 2 ** 40);
  readonly #plane: GpuPlane;
  readonly #script: Script;
  readonly #saw: Saw;
  readonly #engines: Engine[] = [];
  readonly #late: Promise<void>[] = [];
  #leaked = 0;

  constructor(region: Region, store: TieredStore, input: Uint8Array, saw: Saw) {
    const native = loadNative();
    this.#region = region;
    this.#store = store;
    this.#script = new Script(input);
    this.#saw = saw;
    const stats = emptyEngineStats();
    this.#plane = new GpuPlane({
      gpus: this.#gpus,
      native,
      stats,
      clock: systemClock,
      log: () => undefined,
    });
    this.#gpus.holds = true;
  }

  async play(): Promise<void> {
    while (!this.#script.over) {
      await this.#script.oneOf(this.#acts)(await this.#engine());
      for (const engine of this.#engines) this.#mustBeWhole(engine);
    }
    while (this.#gpus.copies.length > 0) await this.#end(0);
    await Promise.all(this.#late);
    for (const engine of this.#engines) this.#die(engine);
    await turn();
    verifyStore(this.#store);
    const { quarantinedSlots } = this.#store.slots;
    must(quarantinedSlots <= this.#leaked, "only what a device keeps stays aside");
    must(this.#plane.orphans === 0 || this.#leaked > 0, "no copy is left");
    must(this.#gpus.openMemories === 0, "memory is given back");
    for (const { holder } of this.#engines) must(holder.held === 0, "the dead hold nothing");
  }

  async #engine(): Promise<Engine> {
    const live = this.#engines.filter(({ isOver }) => !isOver);
    if (live.length === ENGINES) return this.#script.oneOf(live);
    const namespace = 1 as NamespaceIndex;
    const holder = this.#store.openEngineSession({ namespace, handlesMax: 12 });
    const line = this.#plane.open();
    const memory = { uuid: UUID, kind: GpuMemoryKind.ipc, offset: 64, bytes: 2 ** 20 };
    const rest = { allocationBytes: 2 ** 21, handle: new Uint8Array(64) };
    const [answer] = await line.register([{ ...memory, ...rest }]);
    must(answer?.outcome === Outcome.ok && answer.memory === 1, "a memory is taken");
    const engine = { holder, line, writing: [], reading: [], isOver: false, isDead: false };
    this.#engines.push(engine);
    return engine;
  }

  #mustBeWhole({ reading, isDead }: Engine): void {
    if (isDead) return;
    for (const { name, offset, bytes } of reading) {
      const wrongAt = this.#region.firstWrong(offset, bytes, seedOf(name, bytes));
      must(wrongAt === null, "a block that is read is what was committed");
    }
  }

  readonly #acts: readonly ((engine: Engine) => Promise<void> | void)[] = [
    (engine) => this.#reserve(engine),
    (engine) => this.#reserve(engine),
    (engine) => this.#copy(engine, Op.gpuStore),
    (engine) => this.#copy(engine, Op.gpuStore),
    (engine) => this.#copy(engine, Op.gpuLoad),
    () => this.#end(this.#script.u8()),
    () => this.#end(this.#script.u8()),
    (engine) => this.#commit(engine),
    (engine) => this.#commit(engine),
    (engine) => this.#abort(engine),
    (engine) => this.#acquire(engine),
    (engine) => this.#release(engine),
    (engine) => this.#leave(engine),
    () => {
      if (this.#engines.length > 0) this.#die(this.#script.oneOf(this.#engines));
    },
  ];

  #reserve({ holder, writing }: Engine): void {
    const name = this.#script.below(DIGESTS);
    const batch = addressOf(name);
    batch.bytes[0] = this.#script.oneOf(SIZES);
    this.#store.deriveKeys(batch, true);
    const out = createHandleBatch(1);
    holder.reserve(batch, out);
    this.#saw(`reserve ${out.outcome[0]}`);
    if (out.outcome[0] !== Outcome.ok) return;
    const held = heldOf(name, out, batch.bytes[0]!);
    for (const { pieces, toGpu } of this.#gpus.copies) {
      const isThere = pieces.some(({ regionOffset }) => isWithin(regionOffset, held));
      must(toGpu || !isThere, "no device writes to a slot that is handed out");
    }
    writing.push(held);
  }

  /** Whole blocks, or a piece that is out of range. */
  #copy(engine: Engine, op: typeof Op.gpuStore | typeof Op.gpuLoad): void {
    const from = op === Op.gpuStore ? engine.writing : engine.reading;
    if (from.length === 0) return;
    const some = Array.from({ length: 1 + this.#script.below(3) }, () => this.#script.oneOf(from));
    const items = piecesOf(some);
    if (this.#script.below(6) === 0) items.slotOffset[0] = 1;
    const out = { count: 0, outcome: new Uint32Array(items.count) };
    const verify = this.#script.below(2) === 0;
    const copied = engine.line.copy(op, engine.holder, items, verify, out).then(() => {
      for (const [i, held] of some.entries()) {
        this.#saw(`copy ${op} ${out.outcome[i]}`);
        must(out.outcome[i] !== Outcome.corrupt, "what is read is what was committed");
        if (out.outcome[i] !== Outcome.ok) held.isSpoilt = true;
      }
    });
    if (op === Op.gpuStore) for (const held of some) held.isCopied = true;
    this.#late.push(copied);
  }

  /** The device writes now, at the last moment at which it may. */
  async #end(number: number): Promise<void> {
    const { copies } = this.#gpus;
    if (copies.length === 0) return;
    const { pieces, toGpu, end } = copies[number % copies.length]!;
    const how = this.#script.below(8);
    if (!toGpu) {
      for (const { regionOffset, memoryOffset, bytes } of pieces) {
        // The memory's offset says which block it is.
        const name = (memoryOffset - 64) % DIGESTS;
        this.#region.fill(regionOffset, bytes, how < 6 ? seedOf(name, bytes) : 0xbadn);
      }
    }
    if (how < 6) end({ ok: true });
    else {
      const leaked = how === 7;
      if (leaked) this.#leaked += pieces.length;
      end({ ok: false, status: "lost", code: 700, leaked });
    }
    await turn();
  }

  #commit(engine: Engine): void {
    const held = this.#take(engine.writing);
    if (held === null) return;
    const out = handleOf(held);
    if (!held.isCopied) {
      engine.holder.abort(out);
      return;
    }
    const later = engine.holder.commit(out) ?? Promise.resolve();
    const judge = later.then(turn).then(() => {
      this.#saw(`commit ${out.outcome[0]}`);
      const isStored = out.outcome[0] === Outcome.ok;
      must(!isStored || !held.isSpoilt, "only what was copied whole is stored");
    });
    this.#late.push(judge);
  }

  #abort(engine: Engine): void {
    const held = this.#take(engine.writing);
    if (held === null) return;
    const out = handleOf(held);
    engine.holder.abort(out);
    must(out.outcome[0] === Outcome.ok, "an engine gives back what is its own");
  }

  #acquire({ holder, reading }: Engine): void {
    const name = this.#script.below(DIGESTS);
    const batch = addressOf(name);
    this.#store.deriveKeys(batch, false);
    const out = createHandleBatch(1);
    holder.acquire(batch, { tiers: 0, deadlineMs: 0, stopAtMiss: false }, out);
    this.#saw(`acquire ${out.outcome[0]}`);
    if (out.outcome[0] === Outcome.ok) reading.push(heldOf(name, out, out.bytes[0]!));
  }

  #release(engine: Engine): void {
    const held = this.#take(engine.reading);
    if (held !== null) engine.holder.release(handleOf(held));
  }

  #take(list: Held[]): Held | null {
    return list.splice(this.#script.below(Math.max(1, list.length)), 1)[0] ?? null;
  }

  #leave(engine: Engine): void {
    if (engine.isOver) return;
    engine.isOver = true;
    engine.holder.abandon();
    this.#plane.close(engine.line);
    engine.writing = [];
  }

  #die(engine: Engine): void {
    this.#leave(engine);
    if (engine.isDead) return;
    engine.isDead = true;
    engine.reading = [];
    engine.holder.buried();
  }
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

function isWithin(offset: number, { offset: start, bytes }: Held): boolean {
  return offset >= start && offset < start + bytes;
}

function addressOf(name: number) {
  const batch = createAddressBatch(1);
  batch.count = 1;
  batch.layer = ALL;
  batch.digests.fill(1 + name);
  return batch;
}

function heldOf(name: number, out: HandleBatch, bytes: number): Held {
  const [slot, generation, offset] = [out.slot[0]!, out.generation[0]!, out.offset[0]!];
  return { name, slot, generation, offset, bytes, isCopied: false, isSpoilt: false };
}

function handleOf({ slot, generation }: Held): HandleBatch {
  const out = createHandleBatch(1);
  out.count = 1;
  out.slot[0] = slot;
  out.generation[0] = generation;
  return out;
}

function piecesOf(some: readonly Held[]): PieceItems {
  const items = createPieceItems(some.length);
  items.count = some.length;
  for (const [i, { name, slot, generation, bytes }] of some.entries()) {
    items.slot[i] = slot;
    items.generation[i] = generation;
    items.memory[i] = 1;
    items.memoryOffset[i] = name;
    items.bytes[i] = bytes;
  }
  return items;
}

function generate(random: Random): Uint8Array {
  return Uint8Array.from({ length: 20 + randomBelow(random, 300) }, () => random.u32() & 0xff);
}

/** Slots, their holders and devices that copy: nobody writes where somebody reads. */
export function gpuCopies(): Target {
  const native = loadNative();
  const memory = { bytes: ARENA_BYTES, hugePages: "off", lockMemory: "off" } as const;
  const region = Region.create(native, memory);
  const queue = new Queue(native, { entries: 64, threads: 1, watches: 1 });
  return {
    name: "gpu-copies",
    corpus: [new Uint8Array(64), Uint8Array.from({ length: 256 }, (_, i) => (i * 73) & 0xff)],
    inputBytesMax: 2_048,
    generate,
    async run(input, saw) {
      const store = new TieredStore({
        native,
        region,
        queue,
        clock: new ManualClock(),
        random: seededRandom(7),
        blocksMax: 32,
        gpuWindowBlocks: 4,
        policy: "lru",
        marks: { high: 1, low: 1 },
      });
      store.slots.addReady(ARENA_BYTES);
      await new Copies(region, store, input, saw).play();
    },
    async close() {
      await queue[Symbol.asyncDispose]();
      region[Symbol.dispose]();
    },
  };
}
