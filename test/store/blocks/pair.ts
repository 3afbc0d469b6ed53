import { expect } from "bun:test";
import fc from "fast-check";
import {
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
  seededRandom,
} from "../../../src/core/index.ts";
import {
  BlockTable,
  InsertRefusal,
  NodeFlag,
  RECENCY_TIERS,
  Tier,
} from "../../../src/store/blocks/index.ts";
import { block, keyWords, must, pageBytes } from "./blocks.ts";
import {
  descendants,
  isInRamAlone,
  isKept,
  isProtected,
  type ModelNode,
  TableModel,
} from "./model.ts";
import { observe } from "./observe.ts";

const NODES_MAX = 14;
const ALIASES_MAX = 9;
const KEYS = 20;
const NAMES = 5;

const TIERS = [Tier.gpu, Tier.ram, Tier.ssd, Tier.peer] as const;
const LISTED = RECENCY_TIERS;

/**
 * Names of operations, those more often drawn named more often. `a`, `b`, `c` are read as each
 * needs.
 */
const KINDS = [
  "write",
  "write",
  "store",
  "store",
  "store",
  "endWrite",
  "endWrite",
  "gain",
  "lose",
  "lose",
  "gpuRemove",
  "gpuRemove",
  "evict",
  "evict",
  "evict",
  "lock",
  "unlock",
  "unlock",
  "pin",
  "pin",
  "unpin",
  "unpin",
  "touch",
  "touch",
  "mark",
  "describe",
  "flag",
  "alias",
  "page",
] as const;

export interface Step {
  readonly kind: (typeof KINDS)[number];
  readonly a: number;
  readonly b: number;
  readonly c: number;
}

const number = fc.nat({ max: 0xffff });
export const step: fc.Arbitrary<Step> = fc.record({
  kind: fc.constantFrom(...KINDS),
  a: number,
  b: number,
  c: number,
});

const ascending = (a: number, b: number) => a - b;

/** The real table and the model side by side. */
export class Pair {
  readonly table: BlockTable;
  readonly model = new TableModel(NODES_MAX, ALIASES_MAX);
  /** The id and generation each living model node had when it was inserted. */
  readonly ids = new Map<ModelNode, readonly [NodeId, number]>();
  readonly seen: Set<string>;
  readonly dead: (readonly [NodeId, number])[] = [];
  /** What the table said is protected in RAM, and since the last comparison is in RAM alone. */
  private readonly told = new Set<NodeId>();
  private readonly toldAlone = new Set<NodeId>();
  private alone = new Set<ModelNode>();

  constructor(seed: number, seen: Set<string>) {
    this.seen = seen;
    this.table = new BlockTable({
      nodesMax: NODES_MAX,
      aliasesMax: ALIASES_MAX,
      sha256Max: ALIASES_MAX,
      random: seededRandom(seed),
      onProtection: (node, on) => {
        if (this.told.has(node) === on) throw new Error(`told twice of ${node}`);
        if (on) this.told.add(node);
        else this.told.delete(node);
      },
      onInRamAlone: (node) => this.toldAlone.add(node),
    });
  }

  apply(step: Step): void {
    if (step.kind === "write" || step.kind === "store") {
      this.insert(step);
      return;
    }
    const nodes = [...this.model.nodes.values()];
    if (nodes.length === 0) return;
    if (step.kind === "evict") {
      this.evict(LISTED[step.a % LISTED.length]!);
      return;
    }
    const node = nodes[step.a % nodes.length]!;
    this.change(step, node, this.idOf(node));
    this.residencyChange(step, node, this.idOf(node));
    this.describe(step, node, this.idOf(node));
  }

  /**
   * Three of four blocks name the parent a tree of twos gives them, the others anything or nothing.
   */
  private insert(step: Step): void {
    const key = step.a % KEYS;
    const wild = step.b % 8;
    const tree = key === 0 ? null : (key - 1) >> 1;
    const parent = wild > 1 ? tree : wild === 1 ? (step.b >> 3) % KEYS : null;
    const namespace = (step.c % 11 === 0 ? 2 : 1) as NamespaceIndex;
    const bytes = 1 + (step.c % 9);
    const tier = TIERS[(step.c >> 4) % 4]!;
    const said = { key, parent, namespace, bytes };
    const source = block(key, parent, bytes);
    const hasParent = parent !== null;
    const writes = step.kind === "write";
    const before = this.model.nodes.get(key)?.parent;
    const expected = writes
      ? this.model.insertWriting(said)
      : this.model.insertResident(said, tier);
    const got = writes
      ? this.table.insertWriting(source, 0, namespace, hasParent)
      : this.table.insertResident(source, 0, namespace, hasParent, tier);
    this.note(expected, before);
    if (typeof expected === "string") expect(got as number).toBe(InsertRefusal[expected]);
    else expect(this.table.find(keyWords(key), 0)).toBe(must(got));
  }

  /** Which of the rare things happened: a run that never met them proves nothing. */
  private note(inserted: ModelNode | string, before: ModelNode | null | undefined): void {
    if (typeof inserted === "string") {
      this.seen.add(inserted);
      return;
    }
    if (inserted.parent?.ghost) this.seen.add("ghost");
    if (before !== null || inserted.parent === null) return;
    this.seen.add("adopted");
    const listed = [...this.model.lists.values()].flat();
    const below = [inserted, ...descendants(inserted)].some((node) => listed.includes(node));
    if (below && listed.includes(inserted.parent)) this.seen.add("adopted with listed relatives");
    if (isProtected(inserted, Tier.ram)) this.seen.add("adopted while protected");
  }

  private evict(tier: (typeof LISTED)[number]): void {
    const expected = this.model.lists.get(tier)!.at(-1);
    const got = this.table.oldest(tier);
    if (expected === undefined) {
      expect(got).toBe(NO_NODE);
      return;
    }
    expect(got).toBe(this.idOf(expected));
    expect(descendants(expected).some((node) => node.tiers.has(tier))).toBe(false);
    this.table.removeResidency(got, tier);
    this.model.lose(expected, tier);
  }

  private change(step: Step, node: ModelNode, id: NodeId): void {
    const { table, model } = this;
    const hold = (change: () => void) => model.changeHolds(node, change);
    if (step.kind === "lock") {
      expect(table.lock(id)).toBe(true);
      hold(() => node.locks++);
    } else if (step.kind === "unlock" && node.locks > 0) {
      table.unlock(id);
      hold(() => node.locks--);
    } else if (step.kind === "pin") {
      expect(table.pin(id)).toBe(true);
      hold(() => node.pins++);
    } else if (step.kind === "unpin" && node.pins > 0) {
      table.unpin(id);
      hold(() => node.pins--);
    } else if (step.kind === "touch") {
      table.touchPath(id);
      model.touchPath(node);
    }
  }

  private residencyChange(step: Step, node: ModelNode, id: NodeId): void {
    const { table, model } = this;
    const tier = TIERS[1 + (step.b % 3)]!;
    if (step.kind === "gain" && !node.ghost) {
      table.addResidency(id, tier);
      model.gain(node, tier);
    } else if (step.kind === "lose" && node.tiers.has(tier)) {
      table.removeResidency(id, tier);
      model.lose(node, tier);
    } else if (step.kind === "gpuRemove" && node.gpuHolders > 0) {
      table.removeGpuHolder(id);
      model.removeGpuHolder(node);
    } else if (step.kind === "endWrite" && node.writing) {
      table.endWrite(id);
      model.endWrite(node);
    }
  }

  private describe(step: Step, node: ModelNode, id: NodeId): void {
    const { table, model } = this;
    const { a, b, c } = step;
    const name = c % NAMES;
    if (step.kind === "mark") {
      table.markUsed(id, b);
      node.uses++;
      node.lastUsed = b;
    } else if (step.kind === "describe") {
      table.setBytes(id, c);
      node.bytes = c;
      table.setSlot(id, b, c);
      [node.slot, node.slotGeneration] = [b, c];
      table.setChecksum(id, 0xffff_ffff - a, b);
      node.checksum = [0xffff_ffff - a, b];
    } else if (step.kind === "flag") {
      table.setFlag(id, NodeFlag.transient, c % 2 === 0);
      node.transient = c % 2 === 0;
    } else if (step.kind === "alias") {
      expect(table.addAlias(id, name, 0xffff_ffff)).toBe(model.addAlias("aliases", node, name));
    } else if (step.kind === "page") {
      expect(table.addSha256(id, pageBytes(name), 3)).toBe(model.addAlias("pages", node, name));
    }
  }

  idOf(node: ModelNode): NodeId {
    return this.table.find(keyWords(node.key), 0);
  }

  /** Holds everything that can be read of the table against the model. */
  compare(): void {
    const { read, said } = observe(this.table, this.model, KEYS, NAMES);
    if (!Bun.deepEquals(read, said, true)) expect(read).toEqual(said);
    this.compareTold();
    this.compareGenerations();
  }

  /** The listeners heard exactly what changed. */
  private compareTold(): void {
    const nodes = [...this.model.nodes.values()];
    const same = (told: Set<NodeId>, said: readonly ModelNode[]) => {
      const ids = said.map((node) => this.idOf(node));
      if (told.size === said.length && ids.every((id) => told.has(id))) return;
      expect([...told].toSorted(ascending)).toEqual(ids.toSorted(ascending));
    };
    const guarded = nodes.filter((node) => isProtected(node, Tier.ram));
    same(this.told, guarded);
    const alone = nodes.filter(isInRamAlone);
    const fresh = alone.filter((node) => !this.alone.has(node));
    same(this.toldAlone, fresh);
    this.alone = new Set(alone);
    this.toldAlone.clear();
    if (guarded.some((node) => node.locks + node.pins === 0 && isKept(node))) {
      this.seen.add("protected for what is below");
    }
    if (nodes.some((node) => isKept(node) && node.tiers.has(Tier.ram) && !guarded.includes(node))) {
      this.seen.add("kept and free to leave RAM");
    }
  }

  /** A node keeps its id and generation for life; no two lives share both. */
  private compareGenerations(): void {
    const { table, model, ids, dead } = this;
    for (const [node, life] of ids) {
      if (model.nodes.get(node.key) === node) continue;
      ids.delete(node);
      dead.push(life);
      expect(table.isLive(...life)).toBe(false);
    }
    for (const node of model.nodes.values()) {
      const now = [this.idOf(node), table.generationOf(this.idOf(node))] as const;
      const life = ids.get(node);
      if (life !== undefined) {
        if (life[0] !== now[0] || life[1] !== now[1]) expect(now).toEqual(life);
        continue;
      }
      expect(table.isLive(...now)).toBe(true);
      expect(dead.some(([id, generation]) => id === now[0] && generation === now[1])).toBe(false);
      ids.set(node, now);
    }
  }
}
