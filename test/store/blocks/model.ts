/**
 * The block table as plainly as it can be said: objects, arrays, recursion, everything recomputed.
 * It is slow and shares no idea with the real one beyond the promises in `block-table.ts`.
 */

import { NodeFlag, RECENCY_TIERS, type TableView, Tier } from "../../../src/store/blocks/index.ts";

export interface ModelNode {
  readonly key: number;
  readonly namespace: number;
  parent: ModelNode | null;
  /** The one linked last comes first. */
  readonly children: ModelNode[];
  ghost: boolean;
  writing: boolean;
  transient: boolean;
  readonly tiers: Set<Tier>;
  locks: number;
  pins: number;
  gpuHolders: number;
  bytes: number;
  slot: number;
  slotGeneration: number;
  checksum: readonly [number, number];
  uses: number;
  lastUsed: number;
  readonly aliases: Set<number>;
  readonly pages: Set<number>;
}

export interface ModelInsert {
  readonly key: number;
  readonly parent: number | null;
  readonly namespace: number;
  readonly bytes: number;
}

export type Refused = "full" | "foreign" | "cycle" | "busy";

export class TableModel {
  readonly nodesMax: number;
  readonly aliasesMax: number;
  readonly nodes = new Map<number, ModelNode>();
  /** Newest first. */
  readonly lists = new Map<Tier, ModelNode[]>(RECENCY_TIERS.map((tier) => [tier, []]));
  /** In the order in which they were added. */
  aliases: [number, ModelNode][] = [];
  pages: [number, ModelNode][] = [];

  constructor(nodesMax: number, aliasesMax: number) {
    this.nodesMax = nodesMax;
    this.aliasesMax = aliasesMax;
  }

  insertWriting(insert: ModelInsert): ModelNode | Refused {
    if (this.here(insert)?.writing) return "busy";
    const node = this.place(insert);
    if (typeof node === "string") return node;
    if (!node.tiers.has(Tier.ram) && !node.tiers.has(Tier.ssd)) node.bytes = insert.bytes;
    node.writing = true;
    return node;
  }

  insertResident(insert: ModelInsert, tier: Tier): ModelNode | Refused {
    const node = this.place(insert);
    if (typeof node === "string") return node;
    if (node.tiers.size === 0 && !node.writing) node.bytes = insert.bytes;
    if (tier === Tier.gpu) node.gpuHolders++;
    this.gain(node, tier);
    return node;
  }

  endWrite(node: ModelNode): void {
    node.writing = false;
    this.vanish(node);
  }

  gain(node: ModelNode, tier: Tier): void {
    if (node.tiers.has(tier)) return;
    node.tiers.add(tier);
    const list = this.lists.get(tier);
    if (list !== undefined && !isProtected(node, tier)) {
      const ahead = ancestors(node).find((above) => list.includes(above));
      list.splice(ahead === undefined ? 0 : list.indexOf(ahead) + 1, 0, node);
    }
    this.relist(node);
  }

  lose(node: ModelNode, tier: Tier): void {
    node.tiers.delete(tier);
    this.unlist(node, tier);
    this.relist(node);
    this.vanish(node);
  }

  removeGpuHolder(node: ModelNode): void {
    node.gpuHolders--;
    if (node.gpuHolders === 0) this.lose(node, Tier.gpu);
  }

  /** Locks, pins or lets go of a node, as `change` says. */
  changeHolds(node: ModelNode, change: () => void): void {
    change();
    this.relist(node);
    this.vanish(node);
  }

  /** From the node upwards: who may leave a tier now is its newest, who may not is unlisted. */
  private relist(node: ModelNode): void {
    for (const [tier, list] of this.lists) {
      for (const step of [node, ...ancestors(node)]) {
        const may = step.tiers.has(tier) && !isProtected(step, tier);
        if (!may) this.unlist(step, tier);
        else if (!list.includes(step)) list.unshift(step);
      }
    }
  }

  touchPath(node: ModelNode): void {
    for (const step of [node, ...ancestors(node)]) {
      for (const list of this.lists.values()) {
        const at = list.indexOf(step);
        if (at >= 0) list.unshift(...list.splice(at, 1));
      }
    }
  }

  addAlias(kind: "aliases" | "pages", node: ModelNode, name: number): "added" | "present" | "full" {
    if (node[kind].has(name)) return "present";
    if (this[kind].length === this.aliasesMax) return "full";
    node[kind].add(name);
    this[kind].push([name, node]);
    return "added";
  }

  private here(insert: ModelInsert): ModelNode | undefined {
    const node = this.nodes.get(insert.key);
    return node?.namespace === insert.namespace ? node : undefined;
  }

  private place(insert: ModelInsert): ModelNode | Refused {
    const known = this.nodes.get(insert.key);
    if (known !== undefined && known.namespace !== insert.namespace) return "foreign";
    if (insert.parent === null || (known !== undefined && known.parent !== null)) {
      if (known === undefined && this.nodes.size === this.nodesMax) return "full";
      return this.identify(known ?? this.create(insert.key, insert.namespace));
    }
    if (insert.parent === insert.key) return "cycle";
    const knownParent = this.nodes.get(insert.parent);
    if (knownParent !== undefined && knownParent.namespace !== insert.namespace) return "foreign";
    if (known && knownParent && ancestors(knownParent).includes(known)) return "cycle";
    const wanted = (known ? 0 : 1) + (knownParent ? 0 : 1);
    if (this.nodes.size + wanted > this.nodesMax) return "full";

    const node = this.identify(known ?? this.create(insert.key, insert.namespace));
    const parent = knownParent ?? this.create(insert.parent, insert.namespace);
    node.parent = parent;
    parent.children.unshift(node);
    if (known !== undefined) {
      this.relist(parent);
      this.touchPath(parent);
    }
    return node;
  }

  private create(key: number, namespace: number): ModelNode {
    const node: ModelNode = {
      key,
      namespace,
      parent: null,
      children: [],
      ghost: true,
      writing: false,
      transient: false,
      tiers: new Set(),
      locks: 0,
      pins: 0,
      gpuHolders: 0,
      bytes: 0,
      slot: 0,
      slotGeneration: 0,
      checksum: [0, 0],
      uses: 0,
      lastUsed: 0,
      aliases: new Set(),
      pages: new Set(),
    };
    this.nodes.set(key, node);
    return node;
  }

  private identify(node: ModelNode): ModelNode {
    node.ghost = false;
    return node;
  }

  private unlist(node: ModelNode, tier: Tier): void {
    const list = this.lists.get(tier);
    const at = list?.indexOf(node) ?? -1;
    if (at >= 0) list?.splice(at, 1);
  }

  private vanish(node: ModelNode): void {
    const held = node.tiers.size + node.locks + node.pins + node.children.length > 0;
    if (held || node.writing) return;
    this.nodes.delete(node.key);
    this.aliases = this.aliases.filter(([, named]) => named !== node);
    this.pages = this.pages.filter(([, named]) => named !== node);
    const { parent } = node;
    if (parent === null) return;
    parent.children.splice(parent.children.indexOf(node), 1);
    this.vanish(parent);
  }
}

export function ancestors(node: ModelNode): ModelNode[] {
  return node.parent === null ? [] : [node.parent, ...ancestors(node.parent)];
}

/** Each parent before its children. */
export function descendants(node: ModelNode): ModelNode[] {
  return node.children.flatMap((child) => [child, ...descendants(child)]);
}

function subtree(node: ModelNode): ModelNode[] {
  return [node, ...descendants(node)];
}

export function isKept(node: ModelNode): boolean {
  return subtree(node).some(({ pins }) => pins > 0);
}

/** Kept, in RAM and not on SSD. */
export function isInRamAlone(node: ModelNode): boolean {
  return isKept(node) && node.tiers.has(Tier.ram) && !node.tiers.has(Tier.ssd);
}

/** Whether the tier must not give the node up. */
export function isProtected(node: ModelNode, tier: Tier): boolean {
  const isLocked = subtree(node).some(({ locks }) => locks > 0);
  if (tier === Tier.ssd) return isLocked || isKept(node);
  return isLocked || subtree(node).some(isInRamAlone);
}

export function residency(node: ModelNode): number {
  return [...node.tiers].reduce((sum, tier) => sum + tier, 0);
}

/** What the table's flags must say of the node. */
export function flags(node: ModelNode): number {
  return (
    (node.ghost ? NodeFlag.ghost : 0) |
    (node.writing ? NodeFlag.writing : 0) |
    (isProtected(node, Tier.ram) ? NodeFlag.ramProtected : 0) |
    (isKept(node) ? NodeFlag.kept : 0) |
    (node.transient ? NodeFlag.transient : 0)
  );
}

/** The table's nodes of a tier, newest first, read through its door. */
export function listOf(table: TableView, tier: (typeof RECENCY_TIERS)[number]) {
  const nodes = [];
  for (let node = table.oldest(tier); node !== 0; node = table.newerThan(node, tier)) {
    nodes.unshift(node);
  }
  return nodes;
}
