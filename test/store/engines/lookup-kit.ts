import type { NamespaceIndex } from "../../../src/core/index.ts";
import type {
  BlockStore,
  EngineSession,
  Lookup,
  LookupQuery,
  LookupRank,
  LookupState,
} from "../../../src/store/index.ts";
import { type BlockName, batchOf } from "../names.ts";

export const RAM = 2;
export const SSD = 4;
export const PEER = 8;

/** The named blocks in one namespace. */
export function rankOf(store: BlockStore, names: readonly BlockName[], namespace = 1): LookupRank {
  const batch = batchOf(names);
  store.deriveKeys(batch, false);
  return {
    namespace: namespace as NamespaceIndex,
    digests: batch.digests.slice(0, 32 * names.length),
    keys: batch.keys.slice(0, 8 * names.length),
  };
}

export interface Asked {
  readonly lookup: Lookup;
  /** Partial answers. */
  readonly partial: LookupState[];
}

/** Looks up blocks of one rank. `wish` overrides the defaults of the request. */
export function lookUp(
  store: BlockStore,
  holder: EngineSession,
  names: readonly BlockName[],
  wish: Partial<LookupQuery> = {},
): Asked {
  const partial: LookupState[] = [];
  const lookup = holder.lookup(
    {
      ...{ ranks: [rankOf(store, names)], layer: 0xffff_ffff, count: names.length },
      ...{ tiers: RAM | SSD, hold: false, fetch: false, wait: false, source: "" },
      ...{ deadlineMs: 60_000, holdMs: 10_000, readers: 1 },
      ...wish,
    },
    (state) => partial.push({ ...state, best: state.best.slice() }),
  );
  return { lookup, partial };
}

/** The figures of a state that most tests check. */
export function figuresOf({ leading, ready, announced }: LookupState): number[] {
  return [leading, ready, announced];
}
