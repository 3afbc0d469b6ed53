import { type BlockName, DIGEST_BYTES, LAYER_ALL, NO_NODE, type NodeId } from "../../core/index.ts";
import { type AddressBatch, createAddressBatch } from "../batches.ts";
import { NODES_PER_ALIAS_MAX } from "../blocks/index.ts";
import type { TieredStore } from "../tiered-store.ts";

/** Digests whose keys are derived in one call. */
const DERIVED_AT_ONCE = 256;
/** Names a resolver makes room for in the beginning. */
const NAMES_AT_FIRST = 1_024;

/** What the names of a list lead to. Good until the resolver is asked again. */
export interface NamedNodes {
  readonly count: number;
  /** Name `i` means the nodes from `nodes[from[i]]` up to, not including, `nodes[from[i + 1]]`. */
  readonly nodes: Int32Array;
  readonly from: Uint32Array;
}

/**
 * Finds the nodes that names mean: an engine hash those that have it as an alias; 32 bytes those
 * that have them as a page key, or, where there are none, the block with this digest and layer.
 * Of all namespaces. Blocks that are only known as a parent (ghosts) count where asked for.
 */
export class NameResolver {
  readonly #store: TieredStore;
  readonly #batch: AddressBatch = createAddressBatch(DERIVED_AT_ONCE);
  readonly #found = new Int32Array(NODES_PER_ALIAS_MAX);
  /** By the name's place: the node of its digest. */
  #byDigest = new Int32Array(NAMES_AT_FIRST);
  #nodes = new Int32Array(NAMES_AT_FIRST * 2);
  #from = new Uint32Array(NAMES_AT_FIRST + 1);

  constructor(store: TieredStore) {
    this.#store = store;
  }

  /** The nodes of all `names`, in their order; in a microsecond or less a name. */
  resolve(names: readonly BlockName[], ghosts = false): NamedNodes {
    const count = names.length;
    if (count >= this.#from.length) {
      this.#from = new Uint32Array(count * 2);
      this.#byDigest = new Int32Array(count * 2);
    }
    this.#findDigests(names);
    let at = 0;
    for (let i = 0; i < count; i++) {
      this.#from[i] = at;
      at = this.#enter(names[i]!, i, at, ghosts);
    }
    this.#from[count] = at;
    return { count, nodes: this.#nodes, from: this.#from };
  }

  /** The nodes of one name. */
  resolveOne(name: BlockName, ghosts = false): NodeId[] {
    const { nodes, from } = this.resolve([name], ghosts);
    return Array.from(nodes.subarray(0, from[1]!)) as NodeId[];
  }

  /** Keys of all digests first: many in one call cost little more than one. */
  #findDigests(names: readonly BlockName[]): void {
    const { table } = this.#store;
    const batch = this.#batch;
    const places: number[] = [];
    const find = () => {
      batch.count = places.length;
      this.#store.deriveKeys(batch, false);
      for (let i = 0; i < places.length; i++) {
        this.#byDigest[places[i]!] = table.find(batch.keys, i * 8);
      }
      places.length = 0;
    };
    for (let i = 0; i < names.length; i++) {
      const name = names[i]!;
      if (name.kind !== "key") continue;
      const layer = name.layer >>> 0;
      if (places.length === DERIVED_AT_ONCE || (places.length > 0 && layer !== batch.layer)) find();
      batch.layer = layer;
      batch.digests.set(name.bytes, places.length * DIGEST_BYTES);
      places.push(i);
    }
    if (places.length > 0) find();
  }

  /** Writes what the name leads to from `at`; where the next name's nodes begin. */
  #enter(name: BlockName, i: number, at: number, ghosts: boolean): number {
    const { table } = this.#store;
    const found = this.#found;
    let count = 0;
    if (name.kind === "hash") count = table.nodesOfAlias(name.lo, name.hi, found);
    // Who names a layer means a digest.
    else if (name.layer === LAYER_ALL) count = table.nodesOfSha256(name.bytes, 0, found);
    if (count === 0 && name.kind === "key" && this.#byDigest[i] !== NO_NODE) {
      found[0] = this.#byDigest[i]!;
      count = 1;
    }
    if (at + count > this.#nodes.length) {
      const larger = new Int32Array((at + count) * 2);
      larger.set(this.#nodes.subarray(0, at));
      this.#nodes = larger;
    }
    let to = at;
    for (let f = 0; f < count; f++) {
      const node = found[f] as NodeId;
      if (ghosts || !table.isGhost(node)) this.#nodes[to++] = node;
    }
    return to;
  }
}
