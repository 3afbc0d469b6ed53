import type { BlockName, HeldBy, NamespaceIndex } from "../../core/index.ts";
import type { Departure } from "../departures.ts";

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
