import {
  type BlockName,
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
import { allRoots, type Roots, TreeWalk, theseRoots, type WalkPosition } from "./tree-walk.ts";

export type TierLabel = "gpu" | "ram" | "ssd";
/** Tier that can provide a block. `peer`: a peer announced it. */
export type HitLabel = TierLabel | "peer";

/** Description of one block of the tree, for display. */
export interface TreeBlock {
  /** Digest in hex; null if the block is known only as a parent. */
  readonly digest: string | null;
  readonly layer: number;
  /** Namespace key in hex. */
  readonly namespace: string;
  /** Digest of the parent in hex; null if the block has no parent or the digest is unknown. */
  readonly parent: string | null;
  /** Number of levels below the root of the listing, which has depth 0. */
  readonly depth: number;
  readonly bytes: number;
  readonly tiers: readonly TierLabel[];
  readonly pins: number;
  readonly locks: number;
  /** Owners, leases, sessions or connections that lock or pin the block or a descendant. */
  readonly heldBy: readonly HeldBy[];
  readonly transient: boolean;
  readonly uses: number;
  /** Seconds since the last use; null if the block was never used. */
  readonly idleSeconds: number | null;
  /** Number of children, counted up to 1,000. */
  readonly children: number;
  /** Engine hashes in decimal, page keys in hex. */
  readonly aliases: readonly string[];
}

export interface TreeQuery {
  /** Block below which to list; null for all blocks without a parent. */
  readonly root: BlockName | null;
  readonly depthMax: number;
  readonly limit: number;
  /** Cursor: `next` of the previous page; null for the first page. */
  readonly after: string | null;
}

export interface TreePage {
  /** Parents come before their children. */
  readonly blocks: readonly TreeBlock[];
  /**
   * Cursor of the next page; null at the end. Blocks may be stored and removed between pages. No
   * block appears twice, except descendants of a root that got a parent meanwhile. If the last
   * block of a page was removed, the next page begins at the nearest of the eight blocks that
   * followed it; if all of those were removed, after the subtree of the nearest remaining ancestor.
   */
  readonly next: string | null;
  /** True if the root is unknown here, or `after` is not a cursor of this process. */
  readonly missing: boolean;
}

export type ExplainQuery =
  | { readonly names: readonly BlockName[] }
  | {
      readonly tokens: Uint32Array;
      /** Namespace key, 32 bytes. */
      readonly namespace: Uint8Array;
      readonly blockTokens: number;
      readonly layer: number;
    };

/** Reason why the first missing block is missing. */
export type MissReason =
  /**
   * No removal of the block is on record. Removal records are overwritten by newer ones and do not
   * survive a restart.
   */
  | { readonly kind: "never_stored" }
  | { readonly kind: "departed"; readonly departure: Departure }
  /**
   * The block is in neither RAM nor SSD of this host: an engine is writing it, or only a GPU has
   * it.
   */
  | { readonly kind: "being_written" | "gpu_only" }
  /** The same prompt is stored under this other namespace (key in hex). */
  | { readonly kind: "other_namespace"; readonly namespace: string }
  /** The block is on SSD, which cannot be read at present. */
  | { readonly kind: "ssd_unavailable"; readonly why: string };

export interface Explanation {
  /** Number of leading blocks that are in RAM or on SSD, all in one namespace. */
  readonly leading: number;
  readonly blocks: readonly {
    readonly name: string;
    /** Fastest tier that has the block; null for a miss. */
    readonly tier: HitLabel | null;
  }[];
  /** The first block that is not on this host; null if all blocks are. */
  readonly miss: { readonly index: number; readonly why: MissReason } | null;
  /** Absent if all blocks are on this host, or no peers are known. */
  readonly peers?: PeersExplained;
}

/** Availability at peers of the blocks from the first missing one on. */
interface PeersExplained {
  /** Number of leading ones of these blocks that a request would fetch from peers. */
  readonly promised: number;
  /**
   * Reason why a request would not fetch more blocks; null if none is missing or the reason is
   * unknown.
   */
  readonly whyNot: string | null;
}

/** Access to the rules by which blocks are fetched from peers. */
export interface PullInsight {
  /** Returns the reason why these blocks would not be fetched now, or null if they would be. */
  whyNot(
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
  ): string | null;
}

export interface InspectorParts {
  readonly namespaces: Namespaces;
  readonly native: Hashing;
  /** Returns who protects a block. Called only for protected blocks. */
  readonly holdersOf: (node: NodeId) => readonly HeldBy[];
  /** Called for each explanation. Returns null if there are no peers. */
  readonly pulls?: () => PullInsight | null;
}

const UNKNOWN: TreePage = Object.freeze({ blocks: [], next: null, missing: true });

/** Read-only inspection of the block tree. Long walks yield to the event loop between slices. */
export class Inspector {
  readonly #store: TieredStore;
  readonly #parts: InspectorParts;
  readonly #names: NameResolver;
  /**
   * Number, taken from the wall clock, that identifies this process in cursors, because node
   * generations begin anew with each process.
   */
  readonly #run: number;

  constructor(store: TieredStore, parts: InspectorParts) {
    this.#store = store;
    this.#parts = parts;
    this.#names = new NameResolver(store);
    this.#run = store.clock.wallMs() >>> 0;
  }

  async tree({ root, depthMax, limit, after }: TreeQuery): Promise<TreePage> {
    const { table, clock } = this.#store;
    const from = after === null ? null : positionOf(this.#run, after);
    if (after !== null && from === null) return UNKNOWN;
    const roots = root === null ? allRoots(table) : this.#rootsOf(root);
    if (roots === null) return UNKNOWN;
    const walk = new TreeWalk(table, roots, depthMax);
    if (from !== null) walk.resume(from);
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
        // Take the cursor before the next step, since the walk has no position at its end.
        const next = cursorText(this.#run, walk.position());
        const isMore = walk.step() || (await walk.stepToRoot(turn));
        return { blocks, next: isMore ? next : null, missing: false };
      }
      if (!slices.isOver()) continue;
      const position = walk.position();
      await slices.turn();
      walk.resume(position);
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

/** Encodes a walk's position as a cursor. `run`: number that identifies this process. */
function cursorText(run: number, position: WalkPosition): string {
  const words = Uint32Array.of(run, ...position);
  return Buffer.from(words.buffer).toString("base64url");
}

const WORDS_MIN = 5;
const WORDS_MAX = 64;

/** Decodes a cursor. Returns null if the text is invalid or the cursor is from another process. */
function positionOf(run: number, text: string): WalkPosition | null {
  if (text.length > WORDS_MAX * 6) return null;
  const bytes = Buffer.from(text, "base64url");
  const count = bytes.length / 4;
  if (!Number.isInteger(count) || count < WORDS_MIN || count > WORDS_MAX) return null;
  const words = Array.from({ length: count }, (_, at) => bytes.readUInt32LE(at * 4));
  return words.shift() === run && words.length % 2 === 0 ? words : null;
}

/** Maximum number of children counted per block. */
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
  /** Returns who protects a block. Called only if the block is protected. */
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
  return table.isGhost(node) ? null : table.digestOf(node).toHex();
}

/** Returns the tiers that have the block, fastest first. */
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
