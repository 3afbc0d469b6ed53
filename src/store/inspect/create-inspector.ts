import type { HeldBy, NodeId } from "../../core/index.ts";
import { NameResolver } from "../lifecycle/resolve-names.ts";
import { Slices } from "../lifecycle/slices.ts";
import type { Namespaces } from "../namespaces.ts";
import type { TieredStore } from "../tiered-store.ts";
import { explainNames, explainPrompt, type Hashing } from "./explain.ts";
import type {
  ExplainQuery,
  Explanation,
  Inspector,
  PullInsight,
  TreeBlock,
  TreePage,
  TreeQuery,
} from "./inspector.ts";
import { placeOf, placeText } from "./place-text.ts";
import { treeBlock } from "./tree-block.ts";
import { allRoots, type Roots, TreeWalk, theseRoots } from "./tree-walk.ts";

export interface InspectorParts {
  readonly namespaces: Namespaces;
  readonly native: Hashing;
  /** Who keeps a block; asked only of blocks that are kept or locked. */
  readonly holdersOf: (node: NodeId) => readonly HeldBy[];
  /** Asked with each explanation; null where there are no other hosts. */
  readonly pulls?: () => PullInsight | null;
}

const UNKNOWN: TreePage = Object.freeze({ blocks: [], next: null, missing: true });

export function createInspector(store: TieredStore, parts: InspectorParts): Inspector {
  return new StoreInspector(store, parts);
}

class StoreInspector implements Inspector {
  readonly #store: TieredStore;
  readonly #parts: InspectorParts;
  readonly #names: NameResolver;
  /** Tells the places of this run from those of others: generations begin anew with each. */
  readonly #run: number;

  constructor(store: TieredStore, parts: InspectorParts) {
    this.#store = store;
    this.#parts = parts;
    this.#names = new NameResolver(store);
    this.#run = store.clock.wallMs() >>> 0;
  }

  async tree({ root, depthMax, limit, after }: TreeQuery): Promise<TreePage> {
    const { table, clock } = this.#store;
    const from = after === null ? null : placeOf(this.#run, after);
    if (after !== null && from === null) return UNKNOWN;
    const roots = root === null ? allRoots(table) : this.#rootsOf(root);
    if (roots === null) return UNKNOWN;
    const walk = new TreeWalk(table, roots, depthMax);
    if (from !== null) walk.goOn(from);
    return this.#page(walk, Math.max(1, limit), new Slices(clock));
  }

  #rootsOf(root: NonNullable<TreeQuery["root"]>): Roots | null {
    const nodes = this.#names.resolveOne(root, true);
    return nodes.length === 0 ? null : theseRoots(this.#store.table, nodes);
  }

  async #page(walk: TreeWalk, limit: number, slices: Slices): Promise<TreePage> {
    const { table } = this.#store;
    const { namespaces, holdersOf } = this.#parts;
    const facts = { table, namespaces, holdersOf, nowSeconds: this.#store.nowSeconds() };
    const turn = () => slices.turn();
    const blocks: TreeBlock[] = [];
    while (walk.step() || (await walk.stepToRoot(turn))) {
      blocks.push(treeBlock(facts, walk.node, walk.depth));
      if (blocks.length === limit) {
        // Taken before it is known whether anything follows: the walk is at its end after that.
        const next = placeText(this.#run, walk.place());
        const isMore = walk.step() || (await walk.stepToRoot(turn));
        return { blocks, next: isMore ? next : null, missing: false };
      }
      if (!slices.isOver()) continue;
      const place = walk.place();
      await slices.turn();
      walk.goOn(place);
    }
    return { blocks, next: null, missing: false };
  }

  explain(query: ExplainQuery): Promise<Explanation> {
    const { namespaces, native, pulls } = this.#parts;
    const slices = new Slices(this.#store.clock);
    const shared = { store: this.#store, namespaces, native, slices };
    const explainer = { ...shared, names: this.#names, pulls: pulls?.() ?? null };
    return "names" in query ? explainNames(explainer, query) : explainPrompt(explainer, query);
  }
}
