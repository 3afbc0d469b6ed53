import {
  type BlockName,
  DIGEST_BYTES,
  type HeldBy,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../../core/index.ts";
import { NodeFlag, type TableView, Tier } from "../blocks/index.ts";
import type { Departure } from "../departures.ts";
import { Slices } from "../lifecycle/context.ts";
import { NameResolver } from "../lifecycle/resolve-names.ts";
import type { Namespaces } from "../namespaces.ts";
import type { TieredStore } from "../tiered-store.ts";
import { explainNames, explainPrompt, type Hashing } from "./explain.ts";
import { allRoots, type Place, type Roots, TreeWalk, theseRoots } from "./tree-walk.ts";

export type TierLabel = "gpu" | "ram" | "ssd";
/** Where a block may be had from; `peer`: another host is believed to have it. */
export type HitLabel = TierLabel | "peer";

/** One block of the tree, for people and tools. */
export interface TreeBlock {
  /** Hex; null of a block that is known only as a parent. */
  readonly digest: string | null;
  readonly layer: number;
  /** Hex of the namespace key. */
  readonly namespace: string;
  /** Hex of the parent's digest; null: none, or not known. */
  readonly parent: string | null;
  /** Below the root of the answer: 0 is the root itself. */
  readonly depth: number;
  readonly bytes: number;
  readonly tiers: readonly TierLabel[];
  readonly pins: number;
  readonly locks: number;
  /** Of what is locked or kept, itself or by what builds upon it. */
  readonly heldBy: readonly HeldBy[];
  readonly transient: boolean;
  readonly uses: number;
  /** Seconds since its last use; null: never used. */
  readonly idleSeconds: number | null;
  /** At most 1,000 are counted. */
  readonly children: number;
  /** Engine hashes in decimal, page keys in hex. */
  readonly aliases: readonly string[];
}

export interface TreeQuery {
  /** Null: all blocks without a parent. */
  readonly root: BlockName | null;
  readonly depthMax: number;
  readonly limit: number;
  /** `next` of the page before; null for the first. */
  readonly after: string | null;
}

export interface TreePage {
  /** Parents before their children. */
  readonly blocks: readonly TreeBlock[];
  /**
   * Null: that was all. Blocks may come and go between two pages: none is shown twice, but for
   * those below a root that got a parent meanwhile. Where the last block of a page is gone, the
   * next page begins with the nearest of the eight behind it, or, where all of those are gone,
   * behind what is below the nearest ancestor that is left.
   */
  readonly next: string | null;
  /** The root is not known here, or `after` is no `next` of this run of the agent. */
  readonly missing: boolean;
}

export type ExplainQuery =
  | { readonly names: readonly BlockName[] }
  | {
      readonly tokens: Uint32Array;
      /** 32 bytes. */
      readonly namespace: Uint8Array;
      readonly blockTokens: number;
      readonly layer: number;
    };

/** Why the first block that is not there is not there. */
export type MissReason =
  /** As far as is known: departures are forgotten after a while, and with the process. */
  | { readonly kind: "never_stored" }
  | { readonly kind: "departed"; readonly departure: Departure }
  /** It is known, on no tier of ours: somebody writes it now, or only a GPU has it. */
  | { readonly kind: "being_written" | "gpu_only" }
  /** The same prompt is here under another namespace (hex of its key). */
  | { readonly kind: "other_namespace"; readonly namespace: string }
  /** It is on SSD, and SSD does not serve now. */
  | { readonly kind: "ssd_unavailable"; readonly why: string };

export interface Explanation {
  /** Blocks in a row from the first that can be had from RAM or SSD, in one namespace. */
  readonly leading: number;
  readonly blocks: readonly {
    readonly name: string;
    /** The best tier; null: a miss. */
    readonly tier: HitLabel | null;
  }[];
  /** Of the first that is not on this host; null where all hit. */
  readonly miss: { readonly index: number; readonly why: MissReason } | null;
  /** Not where all hit, or where no other host is known. */
  readonly peers?: PeersExplained;
}

/** What other hosts have of what is missing here, from the first miss on. */
export interface PeersExplained {
  /** Blocks in a row that a request would ask them for. */
  readonly promised: number;
  /** Why none, or no more, in words; null: nothing more is wanted, or nobody knows. */
  readonly whyNot: string | null;
}

/** What is known of pulling from other hosts. */
export interface PullInsight {
  /** Why these would not be pulled now, in words; null: they would. */
  whyNot(
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
  ): string | null;
}

/** Looks at the tree and changes nothing; walks in slices, so that nobody waits for it. */
export interface Inspector {
  tree(query: TreeQuery): Promise<TreePage>;
  explain(query: ExplainQuery): Promise<Explanation>;
}

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

/** A place as people carry it from page to page; `run` tells it from places of other runs. */
function placeText(run: number, place: Place): string {
  const words = Uint32Array.of(run, ...place);
  return Buffer.from(words.buffer).toString("base64url");
}

const WORDS_MIN = 5;
const WORDS_MAX = 64;

/** Null where it is none, or of another run. */
function placeOf(run: number, text: string): Place | null {
  if (text.length > WORDS_MAX * 6) return null;
  const bytes = Buffer.from(text, "base64url");
  const count = bytes.length / 4;
  if (!Number.isInteger(count) || count < WORDS_MIN || count > WORDS_MAX) return null;
  const words = Array.from({ length: count }, (_, at) => bytes.readUInt32LE(at * 4));
  return words.shift() === run && words.length % 2 === 0 ? words : null;
}

/** Children that are counted of one block. */
const CHILDREN_MAX = 1_000;

const LABELS: readonly (readonly [Tier, TierLabel])[] = [
  [Tier.gpu, "gpu"],
  [Tier.ram, "ram"],
  [Tier.ssd, "ssd"],
];

interface BlockFacts {
  readonly table: TableView;
  readonly namespaces: Namespaces;
  readonly nowSeconds: number;
  /** Asked only where something keeps the block. */
  readonly holdersOf: (node: NodeId) => readonly HeldBy[];
}

function treeBlock(facts: BlockFacts, node: NodeId, depth: number): TreeBlock {
  const { table, namespaces, nowSeconds } = facts;
  const parent = table.parentOf(node);
  const uses = table.usesOf(node);
  const isHeld = table.isProtected(node, Tier.ssd);
  return {
    digest: digestOf(table, node),
    layer: table.layerOf(node),
    namespace: namespaces.keyOf(table.namespaceOf(node))?.toHex() ?? "",
    parent: parent === NO_NODE ? null : digestOf(table, parent),
    depth,
    bytes: table.bytesOf(node),
    tiers: tiersOf(table, node),
    pins: table.pinsOf(node),
    locks: table.locksOf(node),
    heldBy: isHeld ? facts.holdersOf(node) : [],
    transient: table.hasFlag(node, NodeFlag.transient),
    uses,
    idleSeconds: uses === 0 ? null : Math.max(0, nowSeconds - table.lastUsedOf(node)),
    children: childrenOf(table, node),
    aliases: table.aliasesOf(node).map(aliasText),
  };
}

function digestOf(table: TableView, node: NodeId): string | null {
  if (table.isGhost(node)) return null;
  const digest = new Uint8Array(DIGEST_BYTES);
  table.readDigest(node, digest, 0);
  return digest.toHex();
}

/** The fastest first. */
function tiersOf(table: TableView, node: NodeId): TierLabel[] {
  return LABELS.flatMap(([tier, label]) => (table.isResident(node, tier) ? [label] : []));
}

function childrenOf(table: TableView, node: NodeId): number {
  let count = 0;
  let child = table.firstChildOf(node);
  for (; child !== NO_NODE && count < CHILDREN_MAX; count++) child = table.nextSiblingOf(child);
  return count;
}

function aliasText(alias: Uint8Array): string {
  if (alias.length !== 8) return alias.toHex();
  return new DataView(alias.buffer, alias.byteOffset, 8).getBigUint64(0, true).toString();
}
