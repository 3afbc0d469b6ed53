import type { ResidencyTier } from "../../observability/activity/index.ts";
import type { BlockExtras } from "../engine-event.ts";
import { type BlockName, type Copies, placeOf } from "./known-blocks.ts";

/** A block whose sequence hash is not known yet, because that of its parent is not. */
export interface OrphanBlock {
  readonly name: BlockName;
  readonly parent: BlockName;
  /** Its own copy. */
  readonly tokens: Uint32Array;
  readonly extras: BlockExtras | null;
  readonly loraName: string | null;
  /** Null: its parent's. */
  readonly salt: string | null;
  readonly copies: Copies;
}

/**
 * Blocks that wait for their parents: a feed that begins late hears of the children of blocks that
 * the engine stored before. Bounded by their number. One without copies stays while a child needs
 * it.
 */
export class OrphanBlocks {
  readonly #max: number;
  readonly #byName = new Map<BlockName, OrphanBlock>();
  readonly #children = new Map<BlockName, Set<OrphanBlock>>();

  constructor(max: number) {
    this.#max = max;
  }

  get size(): number {
    return this.#byName.size;
  }
  /** Whether `count` more have room. */
  hasRoom(count: number): boolean {
    return this.#byName.size + count <= this.#max;
  }

  get(name: BlockName): OrphanBlock | null {
    return this.#byName.get(name) ?? null;
  }

  /** Whether a block that waits names it as its parent. */
  isWaitedFor(name: BlockName): boolean {
    return this.#children.has(name);
  }

  all(): Iterable<OrphanBlock> {
    return this.#byName.values();
  }

  /** With its copies; one of that name that is there already stays. */
  add(block: OrphanBlock): OrphanBlock {
    const known = this.#byName.get(block.name);
    if (known !== undefined) return known;
    this.#byName.set(block.name, block);
    const children = this.#children.get(block.parent);
    if (children === undefined) this.#children.set(block.parent, new Set([block]));
    else children.add(block);
    return block;
  }

  addCopy(block: OrphanBlock, tier: ResidencyTier): void {
    block.copies[placeOf(tier)]++;
  }

  /** False: it had none. */
  dropCopy(name: BlockName, tier: ResidencyTier): boolean {
    const block = this.#byName.get(name);
    const place = placeOf(tier);
    if (block === undefined || block.copies[place] === 0) return false;
    block.copies[place]--;
    this.#forgetUnneeded(block);
    return true;
  }

  /** Takes one out, with its copies: it is known by now. */
  take(name: BlockName): OrphanBlock | null {
    const block = this.#byName.get(name);
    if (block === undefined) return null;
    this.#remove(block);
    return block;
  }

  /** Takes out those whose parent that is. */
  takeChildren(parent: BlockName): readonly OrphanBlock[] {
    const children = [...(this.#children.get(parent) ?? [])];
    for (const child of children) this.#remove(child);
    return children;
  }

  clear(): void {
    this.#byName.clear();
    this.#children.clear();
  }

  #remove(block: OrphanBlock): void {
    this.#byName.delete(block.name);
    const siblings = this.#children.get(block.parent);
    siblings?.delete(block);
    if (siblings?.size === 0) this.#children.delete(block.parent);
  }

  /** Up the chain, as far as there is neither a copy nor a child. */
  #forgetUnneeded(block: OrphanBlock): void {
    let at: OrphanBlock | undefined = block;
    while (at?.copies.every((copies) => copies === 0) && !this.#children.has(at.name)) {
      this.#remove(at);
      at = this.#byName.get(at.parent);
    }
  }
}
