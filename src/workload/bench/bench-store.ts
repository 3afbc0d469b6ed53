import { systemClock, systemRandom } from "../../core/index.ts";
import { manifestOf } from "../../identity/index.ts";
import { type Native, Queue, type Region } from "../../native/index.ts";
import {
  ArenaGrowth,
  createArena,
  TieredStore,
  type TieredStoreOptions,
} from "../../store/index.ts";

/** The namespace of blocks that mean nothing. */
export const BENCH_MANIFEST = manifestOf({
  model: "bench",
  dtype: "pattern",
  layout: "hearth:bench",
  blockTokens: 64,
});

type Arena = Parameters<typeof createArena>[1];

export function benchArena(bytes: number): Arena {
  return { bytes, hugePages: "try", lockMemory: "off", sliceBytes: 2 ** 26 };
}

/** Populates a whole arena. Throws ARENA_UNAVAILABLE. */
export async function growArena(
  region: Region,
  queue: Queue,
  arena: Arena,
  onReady: (bytes: number) => void = () => undefined,
): Promise<void> {
  const growth = new ArenaGrowth(region, queue, arena, onReady);
  await growth.first();
  await growth.rest((short) => {
    throw short;
  });
}

interface BenchStoreOptions extends Pick<TieredStoreOptions, "blocksMax" | "marks"> {
  readonly native: Native;
  /** Bytes of the arena. */
  readonly bytes: number;
  readonly threads: number;
  readonly watches: number;
}

/** The store of an agent with RAM alone. `grow` populates its arena, which must come first. */
export function createBenchStore(options: BenchStoreOptions) {
  const { native, bytes, threads, watches, blocksMax, marks } = options;
  const arena = benchArena(bytes);
  const region = createArena(native, arena);
  const queue = new Queue(native, { entries: 1024, threads, watches });
  const store = new TieredStore({
    ...{ native, region, queue, blocksMax, marks },
    clock: systemClock,
    random: systemRandom,
    gpuWindowBlocks: 0,
    policy: "lru",
  });
  const grow = () =>
    growArena(region, queue, arena, (ready) => {
      store.slots.addReady(ready - store.slots.readyBytes);
    });
  return { region, queue, store, grow };
}
