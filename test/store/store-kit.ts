import type { NamespaceIndex } from "../../src/core/index.ts";
import { seededRandom } from "../../src/core/index.ts";
import { loadNative, Queue, Region } from "../../src/native/index.ts";
import {
  type ArenaPart,
  Namespaces,
  type StoreSnapshot,
  TieredStore,
  type WaterMarks,
} from "../../src/store/index.ts";
import { endlessTurns, ManualClock } from "../support/index.ts";
import { StoreEngine } from "./store-engine.ts";
import { verifyStore } from "./verify-store.ts";

export interface StoreKitOptions {
  readonly arenaBytes: number;
  readonly blocksMax?: number;
  readonly gpuWindowBlocks?: number;
  readonly marks?: WaterMarks;
  readonly parts?: readonly ArenaPart[];
  /** Bytes populated at the start; all by default. */
  readonly readyBytes?: number;
  /** MAC keys by identifier. */
  readonly macKeys?: ReadonlyMap<string, Uint8Array>;
}

/** A RAM store with real memory and real threads, on a manual clock. */
export interface StoreKit extends AsyncDisposable {
  readonly store: TieredStore;
  readonly region: Region;
  readonly queue: Queue;
  readonly clock: ManualClock;
  /** Another engine; engines with the same number share a namespace. */
  engine(namespace?: number, handlesMax?: number): StoreEngine;
  snapshot(): StoreSnapshot;
  /** Ends every engine and its process, then checks that no slot is in use or lost. */
  expectNothingLeft(): void;
}

export const PAGE = 4096;

/** Key of the namespace with this number. */
export function namespaceKey(namespace: number): Uint8Array {
  return new Uint8Array(32).fill(namespace);
}

export function openStoreKit(options: StoreKitOptions): StoreKit {
  const native = loadNative();
  const bytes = options.arenaBytes;
  const region = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
  const queue = new Queue(native, { entries: 64, threads: 2, watches: 8 });
  const clock = new ManualClock();
  const namespaces = new Namespaces();
  for (let i = 1; i <= 3; i++) namespaces.indexOf(namespaceKey(i));
  const store = new TieredStore({
    native,
    region,
    queue,
    clock,
    namespaces,
    random: seededRandom(7),
    blocksMax: options.blocksMax ?? 256,
    gpuWindowBlocks: options.gpuWindowBlocks ?? 0,
    // No background eviction unless a test asks for it.
    policy: "lru",
    marks: options.marks ?? { high: 1, low: 1 },
    parts: options.parts ?? [],
    turns: endlessTurns,
    macKeys: options.macKeys ?? new Map(),
  });
  store.slots.addReady(options.readyBytes ?? bytes);
  const engines: StoreEngine[] = [];
  return {
    store,
    region,
    queue,
    clock,
    engine(namespace = 1, handlesMax = 1_000) {
      const holder = store.openEngineSession({
        namespace: namespace as NamespaceIndex,
        handlesMax,
      });
      const engine = new StoreEngine(store, region, holder);
      engines.push(engine);
      return engine;
    },
    snapshot: () => store.snapshot(),
    expectNothingLeft() {
      for (const engine of engines) engine.die();
      verifyStore(store);
      const { slotsUsed, slotsQuarantined, ramBlocks } = store.snapshot();
      const left = { lost: slotsUsed - ramBlocks, quarantined: slotsQuarantined };
      if (left.lost !== 0 || left.quarantined !== 0) throw new Error(JSON.stringify(left));
      if (engines.some((engine) => engine.holder.held !== 0)) throw new Error("a hold is left");
    },
    async [Symbol.asyncDispose]() {
      await store[Symbol.asyncDispose]();
      await queue[Symbol.asyncDispose]();
      region[Symbol.dispose]();
    },
  };
}
