import { type BlockName, DIGEST_BYTES, LAYER_ALL, NO_NODE, type NodeId } from "../../core/index.ts";
import { type AddressBatch, createAddressBatch } from "../batches.ts";
import { NODES_PER_ALIAS_MAX } from "../blocks/index.ts";
import type { TieredStore } from "../tiered-store.ts";

/** Number of digests whose keys are derived in one native call. */
const DERIVED_AT_ONCE = 256;
/** Initial capacity of the result arrays, in names. */
const NAMES_AT_FIRST = 1_024;

/** The nodes to which a list of names resolves. Valid until the next call of the resolver. */
export interface NamedNodes {
  readonly count: number;
  /**
   * Nodes of all names. Name `i` has those from `nodes[from[i]]` up to, not including,
   * `nodes[from[i + 1]]`.
   */
  readonly nodes: Int32Array;
  readonly from: Uint32Array;
}

/**
 * Resolves block names to nodes in all namespaces. An engine hash resolves to all nodes with that
 * alias. A name of 32 bytes resolves to the nodes with that page key; if there are none, to the
 * block with that digest and layer. With `ghosts`, blocks known only as a parent are included.
 */
export class NameResolver {
  readonly #store: TieredStore;
  readonly #batch: AddressBatch = createAddressBatch(DERIVED_AT_ONCE);
  readonly #found = new Int32Array(NODES_PER_ALIAS_MAX);
  /** Per name: the node with that digest, or NO_NODE. */
  #byDigest = new Int32Array(NAMES_AT_FIRST);
  #nodes = new Int32Array(NAMES_AT_FIRST * 2);
  #from = new Uint32Array(NAMES_AT_FIRST + 1);

  constructor(store: TieredStore) {
    this.#store = store;
  }

  /** Returns the nodes of all `names`, in order. Takes at most a microsecond per name. */
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
      at = this.#enter(names[i], i, at, ghosts);
    }
    this.#from[count] = at;
    return { count, nodes: this.#nodes, from: this.#from };
  }

  /** Returns the nodes of one name. */
  resolveOne(name: BlockName, ghosts = false): NodeId[] {
    const { nodes, from } = this.resolve([name], ghosts);
    return Array.from(nodes.subarray(0, from[1])) as NodeId[];
  }

  /**
   * Looks up the nodes of all names by digest. Uses few native calls, since a call for many digests
   * takes little longer than one for a single digest.
   */
  #findDigests(names: readonly BlockName[]): void {
    const { table } = this.#store;
    const batch = this.#batch;
    const places: number[] = [];
    const find = () => {
      batch.count = places.length;
      this.#store.deriveKeys(batch, false);
      for (let i = 0; i < places.length; i++) {
        this.#byDigest[places[i]] = table.find(batch.keys, i * 8);
      }
      places.length = 0;
    };
    for (let i = 0; i < names.length; i++) {
      const name = names[i];
      if (name.kind !== "key") continue;
      const layer = name.layer >>> 0;
      if (places.length === DERIVED_AT_ONCE || (places.length > 0 && layer !== batch.layer)) find();
      batch.layer = layer;
      batch.digests.set(name.bytes, places.length * DIGEST_BYTES);
      places.push(i);
    }
    if (places.length > 0) find();
  }

  /** Writes the nodes of one name to the result from index `at`. Returns the index after them. */
  #enter(name: BlockName, i: number, at: number, ghosts: boolean): number {
    const { table } = this.#store;
    const found = this.#found;
    let count = 0;
    if (name.kind === "hash") count = table.nodesOfAlias(name.lo, name.hi, found);
    // A name with a layer can only be a digest; only names without one are looked up as page keys.
    else if (name.layer === LAYER_ALL) count = table.nodesOfSha256(name.bytes, 0, found);
    if (count === 0 && name.kind === "key" && this.#byDigest[i] !== NO_NODE) {
      found[0] = this.#byDigest[i];
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
