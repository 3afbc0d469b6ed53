import { messageOf, type NamespaceIndex, seededRandom } from "../../../src/core/index.ts";
import {
  type Connection,
  createFrameHandler,
  ENGINE_LIMITS,
  type EngineLimits,
  emptyEngineStats,
  FrameCounts,
  GpuPlane,
  GpuWarming,
} from "../../../src/engine/index.ts";
import { loadNative, Queue, Region } from "../../../src/native/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { Namespaces, TieredStore } from "../../../src/store/index.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { ManualClock } from "../../support/index.ts";
import { must } from "../target.ts";

export const ARENA_BYTES = 2 ** 20;
/** Small, so that each is met; three engines can hold the arena together. */
export const LIMITS: EngineLimits = {
  ...ENGINE_LIMITS,
  itemsMax: 64,
  handlesMax: 12,
  frameBytesMax: 16 * 1024,
  unreadBytesMax: 2 * 1024,
};
const SESSIONS = [1n, 2n, 3n] as const;

export function sessionOf(number: number): bigint {
  return SESSIONS[number % SESSIONS.length]!;
}

/** The store of one conversation, and what answers its frames. */
interface Acts {
  readonly store: TieredStore;
  readonly namespaces: Namespaces;
  readonly handle: ReturnType<typeof createFrameHandler>;
}

type SendFd = (connection: Connection) => number;

/**
 * The agent without its socket: handlers, a real store and real memory. `reset` gives it a new
 * store, so that one input always does the same.
 */
export class Stage implements AsyncDisposable {
  readonly region: Region;
  draining = false;
  readonly #native = loadNative();
  readonly #queue: Queue;
  readonly #clock = new ManualClock();
  readonly #sendFd: SendFd;
  #acts: Acts;
  #fault: unknown = null;

  constructor(sendFd: SendFd) {
    const options = { bytes: ARENA_BYTES, hugePages: "off", lockMemory: "off" } as const;
    this.region = Region.create(this.#native, options);
    this.#queue = new Queue(this.#native, { entries: 64, threads: 1, watches: 1 });
    this.#sendFd = sendFd;
    this.#acts = this.reset();
  }

  /** A failure that the agent would log; found at the next look. */
  readonly onFault = (_connection: Connection, error: unknown): void => {
    this.#fault = error;
  };

  get handle(): Acts["handle"] {
    return this.#acts.handle;
  }

  reset(): Acts {
    const store = new TieredStore({
      native: this.#native,
      region: this.region,
      queue: this.#queue,
      clock: this.#clock,
      random: seededRandom(7),
      blocksMax: 48,
      gpuWindowBlocks: 6,
      policy: "lru",
      marks: { high: 0.8, low: 0.6 },
    });
    store.slots.addReady(ARENA_BYTES);
    const namespaces = new Namespaces();
    const handle = createFrameHandler({
      store,
      namespaces,
      hashing: this.#native,
      digests: this.#native,
      native: this.#native,
      gpu: new GpuPlane({
        gpus: null,
        native: this.#native,
        stats: emptyEngineStats(),
        clock: this.#clock,
        log: () => undefined,
      }),
      warm: new GpuWarming({ clock: this.#clock, itemsMax: LIMITS.itemsMax }),
      limits: LIMITS,
      incarnation: 1n,
      frames: new FrameCounts(),
      nowMs: () => this.#clock.monotonicMs(),
      lookedUp: () => undefined,
      draining: () => this.draining,
      sendFd: this.#sendFd,
      log: () => undefined,
      onFault: this.onFault,
    });
    this.draining = false;
    this.#fault = null;
    this.#acts = { store, namespaces, handle };
    return this.#acts;
  }

  /** What must hold at any time. */
  verify(): void {
    must(this.#fault === null, `the agent fails on nothing: ${messageOf(this.#fault)}`);
    verifyStore(this.#acts.store);
  }

  /** After the last engine is dead and every session over, nothing is held and no slot is lost. */
  mustBeEmptyHanded(): void {
    const { store, namespaces } = this.#acts;
    for (let index = 1; index <= namespaces.size; index++) {
      const namespace = index as NamespaceIndex;
      const holder = store.openEngineSession({ namespace, handlesMax: 1 });
      for (const session of SESSIONS) holder.sessionRelease(session);
    }
    this.verify();
    const { table, slots } = store;
    must(slots.quarantinedSlots === 0, "no slot waits for a death");
    must(slots.usedSlots === table.residentBlocks(Tier.ram), "each slot in use has its block");
    must(table.residentBlocks(Tier.gpu) === 0, "no GPU of the dead holds a block");
    // A damaged frame may have begun a session of any number: it goes on holding its blocks.
    if (store.sessions.size > 0) return;
    const free = table.evictableBlocks(Tier.ram);
    must(free === table.residentBlocks(Tier.ram), "no block is locked by nobody");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#acts.store[Symbol.asyncDispose]();
    await this.#queue[Symbol.asyncDispose]();
    this.region[Symbol.dispose]();
  }
}
