import { type BlockName, type HeldBy, LAYER_ALL, type NodeId } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import {
  Inspector,
  Namespaces,
  type PullInsight,
  type TieredStore,
  type TreeBlock,
  type TreeQuery,
} from "../../../src/store/index.ts";
import { digestOf } from "../names.ts";

export const byDigest = (name: string): BlockName => {
  const bytes = digestOf(name);
  return { kind: "key", given: bytes.toHex(), bytes, layer: LAYER_ALL };
};

export const byHash = (given: number): BlockName => ({ kind: "hash", given, lo: given, hi: 0 });

export interface InspectKit {
  readonly inspector: Inspector;
  readonly namespaces: Namespaces;
  /** Nodes whose owners were looked up. */
  readonly asked: NodeId[];
}

/** Namespace `i` has a key of 32 times `i`. */
export function inspect(
  store: TieredStore,
  holders: readonly HeldBy[] = [],
  pulls: PullInsight | null = null,
): InspectKit {
  const namespaces = new Namespaces();
  for (let i = 1; i <= 3; i++) namespaces.indexOf(new Uint8Array(32).fill(i));
  const asked: NodeId[] = [];
  const holdersOf = (node: NodeId) => {
    asked.push(node);
    return holders;
  };
  const native = loadNative();
  return {
    inspector: new Inspector(store, { namespaces, native, holdersOf, pulls: () => pulls }),
    namespaces,
    asked,
  };
}

const ALL: TreeQuery = { root: null, depthMax: 1_000, limit: 1_000, after: null };

/** All pages; `between` runs between two of them. */
export async function walkTree(
  inspector: Inspector,
  query: Partial<TreeQuery>,
  between: (page: number) => unknown = () => {},
): Promise<TreeBlock[]> {
  const blocks: TreeBlock[] = [];
  for (let [after, page]: [string | null, number] = [null, 0]; ; page++) {
    const answer = await inspector.tree({ ...ALL, ...query, after });
    if (answer.missing) throw new Error("the root is missing");
    blocks.push(...answer.blocks);
    if (answer.next === null) return blocks;
    after = answer.next;
    await between(page);
  }
}

/** Maps digests to the names that tests use. */
export function namesOf(blocks: readonly TreeBlock[], all: readonly string[]): string[] {
  const names = new Map(all.map((name) => [digestOf(name).toHex(), name]));
  return blocks.map(({ digest }) => (digest === null ? "ghost" : (names.get(digest) ?? "?")));
}
