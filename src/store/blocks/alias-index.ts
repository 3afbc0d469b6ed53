import { assert, NO_NODE, type NodeId, type Random } from "../../core/index.ts";
import { ALIASES_PER_NODE_MAX, type AliasResult, NODES_PER_ALIAS_MAX } from "./block-table.ts";
import { HashIndex } from "./hash-index.ts";

/**
 * Other names of nodes: one name may lead to several nodes, one node may have several names. An
 * entry is a pair (name, node); the names of one node hang together in a chain, so that they can go
 * with it. A free entry links to the next free one by `nextOfNode`.
 */
export class AliasIndex {
  readonly entriesMax: number;
  /** Words a name has. */
  readonly width: number;
  readonly words: Uint32Array;
  readonly nodes: Int32Array;
  readonly nextOfNode: Int32Array;
  readonly firstOfNode: Int32Array;
  readonly index: HashIndex;
  count = 0;
  highest = 0;
  firstFree = 0;

  constructor(width: number, entriesMax: number, nodesMax: number, random: Random) {
    const words = new Uint32Array(new ArrayBuffer((entriesMax + 1) * width * 4));
    this.entriesMax = entriesMax;
    this.width = width;
    this.words = words;
    this.nodes = new Int32Array(new ArrayBuffer((entriesMax + 1) * 4));
    this.nextOfNode = new Int32Array(new ArrayBuffer((entriesMax + 1) * 4));
    this.firstOfNode = new Int32Array(new ArrayBuffer((nodesMax + 1) * 4));
    this.index = new HashIndex(words, width, entriesMax, random);
  }

  /** `name` holds `width` words. */
  add(node: number, name: Uint32Array): AliasResult {
    const hash = this.index.hash(name, 0);
    let sharing = 0;
    for (let step = this.step(name, hash, -1); step >= 0; step = this.step(name, hash, step)) {
      if (this.nodes[this.index.idAt(hash, step)] === node) return "present";
      sharing++;
    }
    if (sharing >= NODES_PER_ALIAS_MAX || this.namesOf(node) >= ALIASES_PER_NODE_MAX) return "full";
    const entry = this.take();
    if (entry === 0) return "full";
    for (let i = 0; i < this.width; i++) this.words[entry * this.width + i] = name[i]!;
    if (!this.index.insert(entry, hash)) {
      this.give(entry);
      return "full";
    }
    this.nodes[entry] = node;
    this.nextOfNode[entry] = this.firstOfNode[node]!;
    this.firstOfNode[node] = entry;
    return "added";
  }

  /** The node's names as bytes, little-endian words. */
  namesGivenTo(node: number): Uint8Array[] {
    const names: Uint8Array[] = [];
    for (let entry = this.firstOfNode[node]!; entry !== 0; entry = this.nextOfNode[entry]!) {
      const words = this.words.slice(entry * this.width, (entry + 1) * this.width);
      names.push(new Uint8Array(words.buffer));
    }
    return names;
  }

  /** The first two words of the node's latest names, `max` of them at most; how many. */
  readStarts(node: number, into: Uint32Array, at: number, max: number): number {
    let names = 0;
    for (let entry = this.firstOfNode[node]!; entry !== 0; entry = this.nextOfNode[entry]!) {
      if (names === max) break;
      into[at + names * 2] = this.words[entry * this.width]!;
      into[at + names * 2 + 1] = this.words[entry * this.width + 1]!;
      names++;
    }
    return names;
  }

  /** Takes all names of the node away. */
  removeNode(node: number): void {
    let entry = this.firstOfNode[node]!;
    // A node without names writes nothing: its entry of the column stays untouched memory.
    if (entry === 0) return;
    this.firstOfNode[node] = 0;
    while (entry !== 0) {
      const next = this.nextOfNode[entry]!;
      this.index.remove(entry);
      this.give(entry);
      entry = next;
    }
  }

  nodesOf(name: Uint32Array, out: Int32Array): number {
    const hash = this.index.hash(name, 0);
    let found = 0;
    for (let step = this.step(name, hash, -1); step >= 0; step = this.step(name, hash, step)) {
      if (found === out.length) break;
      out[found++] = this.nodes[this.index.idAt(hash, step)]!;
    }
    return found;
  }

  /** The first node of that name whose namespace, the upper half of its `meta`, is this one. */
  findIn(name: Uint32Array, meta: Int32Array, namespace: number): NodeId {
    const hash = this.index.hash(name, 0);
    for (let step = this.step(name, hash, -1); step >= 0; step = this.step(name, hash, step)) {
      const node = this.nodes[this.index.idAt(hash, step)]!;
      if (meta[node]! >>> 16 === namespace) return node as NodeId;
    }
    return NO_NODE;
  }

  private step(name: Uint32Array, hash: number, after: number): number {
    return this.index.seek(name, 0, hash, after + 1);
  }

  private namesOf(node: number): number {
    let names = 0;
    for (let entry = this.firstOfNode[node]!; entry !== 0; entry = this.nextOfNode[entry]!) names++;
    return names;
  }

  private take(): number {
    let entry = this.firstFree;
    if (entry !== 0) this.firstFree = this.nextOfNode[entry]!;
    else if (this.highest === this.entriesMax) return 0;
    else entry = ++this.highest;
    this.count++;
    return entry;
  }

  private give(entry: number): void {
    assert(this.count > 0, "an alias to give back exists");
    this.nodes[entry] = 0;
    this.nextOfNode[entry] = this.firstFree;
    this.firstFree = entry;
    this.count--;
  }
}

/** Reads 32 bytes from `bytes[at]`, of any alignment, into eight words. */
export function wordsOfBytes(bytes: Uint8Array, at: number, into: Uint32Array): void {
  for (let word = 0; word < 8; word++) {
    const from = at + word * 4;
    into[word] =
      bytes[from]! | (bytes[from + 1]! << 8) | (bytes[from + 2]! << 16) | (bytes[from + 3]! << 24);
  }
}
