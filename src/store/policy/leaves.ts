import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { Stretches } from "./stretches.ts";
import type { OrderView } from "./victim-order.ts";

const RESIDENT = 1;
const PROTECTED = 2;
/** Counted among its parent's children. */
const COUNTED = 4;
/** In its stretch's list of leaves. */
const LISTED = 8;

/**
 * Which blocks are resident, and which of them could go: those that nothing protects and that have
 * nothing resident below them, however far. These stand in a list of their stretch. 13 bytes an id.
 */
export class Leaves {
  /** The block that does not go though it could, or NO_NODE. */
  spared: NodeId = NO_NODE;
  /** The stretch of each resident block. */
  readonly stretchOf: Uint32Array;
  resident = 0;
  readonly #view: OrderView;
  readonly #stretches: Stretches;
  readonly #offer: (stretch: number) => void;
  readonly #state: Uint8Array;
  /** Listed: the next leaf of the stretch. Else: children that are resident or have such below. */
  readonly #nextOrChildren: Uint32Array;
  readonly #previous: Uint32Array;

  /** `offer` is called when a stretch has one leaf more. */
  constructor(
    view: OrderView,
    idsMax: number,
    stretches: Stretches,
    offer: (stretch: number) => void,
  ) {
    this.#view = view;
    this.#stretches = stretches;
    this.#offer = offer;
    this.stretchOf = new Uint32Array(idsMax + 1);
    this.#state = new Uint8Array(idsMax + 1);
    this.#nextOrChildren = new Uint32Array(idsMax + 1);
    this.#previous = new Uint32Array(idsMax + 1);
  }

  get bytes(): number {
    const columns = [this.stretchOf, this.#state, this.#nextOrChildren, this.#previous];
    return columns.reduce((sum, column) => sum + column.byteLength, 0);
  }

  isResident(id: number): boolean {
    return (this.#state[id]! & RESIDENT) !== 0;
  }

  /** Whether it is one that could go, listed or spared. */
  isLeaf(id: number): boolean {
    const state = this.#state[id]!;
    if ((state & LISTED) !== 0) return true;
    return (state & (RESIDENT | PROTECTED)) === RESIDENT && this.#nextOrChildren[id] === 0;
  }

  /** Children that are resident or have such below; of one that is not listed. */
  childrenOf(id: number): number {
    return (this.#state[id]! & LISTED) !== 0 ? 0 : this.#nextOrChildren[id]!;
  }

  /** It is resident now. */
  enter(id: NodeId): void {
    this.#state[id] = this.#state[id]! | RESIDENT;
    this.resident++;
    this.#count(id);
  }

  /** It is resident no more. */
  leave(id: NodeId): void {
    this.unlist(id);
    this.#state[id] = this.#state[id]! & ~RESIDENT;
    this.resident--;
    if (this.#nextOrChildren[id] === 0) this.#uncount(id);
  }

  protect(id: NodeId): void {
    this.unlist(id);
    this.#state[id] = this.#state[id]! | PROTECTED;
  }

  unprotect(id: NodeId): void {
    this.#state[id] = this.#state[id]! & ~PROTECTED;
    this.list(id);
  }

  /** Lists it where it could go; before its stretch is another, `unlist` it. */
  list(id: number): void {
    if ((this.#state[id]! & LISTED) !== 0 || !this.isLeaf(id) || id === this.spared) return;
    const stretch = this.stretchOf[id]!;
    const { leaf } = this.#stretches;
    const next = leaf[stretch]!;
    this.#nextOrChildren[id] = next;
    this.#previous[id] = 0;
    if (next !== 0) this.#previous[next] = id;
    leaf[stretch] = id;
    this.#state[id] = this.#state[id]! | LISTED;
    this.#offer(stretch);
  }

  unlist(id: number): void {
    if ((this.#state[id]! & LISTED) === 0) return;
    const next = this.#nextOrChildren[id]!;
    const previous = this.#previous[id]!;
    if (previous !== 0) this.#nextOrChildren[previous] = next;
    else this.#stretches.leaf[this.stretchOf[id]!] = next;
    if (next !== 0) this.#previous[next] = previous;
    this.#nextOrChildren[id] = 0;
    this.#state[id] = this.#state[id]! & ~LISTED;
  }

  /** It is resident or has such below: so its parent has, whether that is resident or not. */
  #count(from: NodeId): void {
    let id = from;
    while ((this.#state[id]! & COUNTED) === 0) {
      const parent = this.#view.parentOf(id);
      if (parent === NO_NODE) return;
      this.#state[id] = this.#state[id]! | COUNTED;
      this.unlist(parent);
      this.#nextOrChildren[parent] = this.#nextOrChildren[parent]! + 1;
      id = parent;
    }
  }

  /** Neither it nor anything below it is resident any more. */
  #uncount(from: NodeId): void {
    let id = from;
    while ((this.#state[id]! & COUNTED) !== 0) {
      this.#state[id] = this.#state[id]! & ~COUNTED;
      const parent = this.#view.parentOf(id);
      this.#nextOrChildren[parent] = this.#nextOrChildren[parent]! - 1;
      if (this.#nextOrChildren[parent] !== 0) return;
      if ((this.#state[parent]! & RESIDENT) !== 0) {
        this.list(parent);
        return;
      }
      id = parent;
    }
  }
}
