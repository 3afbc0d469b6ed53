import type { Clock, NamespaceIndex, NodeId } from "../../core/index.ts";
import type { TableView } from "../blocks/index.ts";
import { REMEMBERED_MS, RemovedLately } from "./removed-lately.ts";

/** Blocks below which something was pruned, as many as are told apart. */
const ANCHORS_MAX = 4_096;

/** `BlockKey` in hex, from its eight words at `words[at]`. */
export function hexOfKey(words: Uint32Array, at: number): string {
  return new Uint8Array(words.buffer, words.byteOffset + at * 4, 32).toHex();
}

/** The name by an engine's hash, in hex, as the table tells it: little-endian. */
export function hexOfHash(lo: number, hi: number): string {
  return new Uint8Array(new Uint32Array([lo, hi]).buffer).toHex();
}

/** A block that is on its way here, and what commands did meanwhile. */
export interface Awaited {
  readonly key: string;
  readonly namespace: NamespaceIndex;
  readonly slotBytes: number;
  /** It was removed here, or would have been. */
  removed: boolean;
  /** Blocks that are transient were. */
  transientsRemoved: boolean;
  /** What was pruned after so many prunes, or later than this (monotonic ms), counts for it. */
  readonly anchorsBefore: number;
  readonly anchorsSinceMs: number;
}

/** When something was pruned: how many prunes there were by then, and in monotonic ms. */
interface Pruned {
  readonly number: number;
  readonly ms: number;
}

const NEVER: Pruned = { number: 0, ms: Number.NEGATIVE_INFINITY };

/**
 * What is on its way from other hosts, so that nothing comes back that was removed while it was on
 * its way, nor what was removed so lately that other hosts may have yet to remove it. Commands say
 * what they remove, also where it is not here. Costs nothing without other hosts.
 */
export class Landings {
  readonly #clock: Clock;
  readonly #byKey = new Map<string, Awaited[]>();
  readonly #lately: RemovedLately;
  /** Keys and names of blocks below which all was pruned, in hex; the first is the oldest. */
  readonly #anchors = new Map<string, Pruned>();
  #pruned = NEVER;
  /** The last of those that are not told apart any more. */
  #lost = NEVER;
  #remembers = false;
  /** Bytes of the places that wait. */
  slotBytes = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#lately = new RemovedLately(clock);
  }

  get areNone(): boolean {
    return this.#byKey.size === 0;
  }

  /** Whether it matters to anything what commands remove. */
  get minds(): boolean {
    return this.#remembers || !this.areNone;
  }

  /** Whether what was removed is remembered beyond what is on its way: there are other hosts. */
  set remembers(remembers: boolean) {
    this.#remembers = remembers;
    if (!remembers) this.#lately.clear();
  }

  /** Whether the block was removed here so lately that other hosts may still have it wrongly. */
  wasRemoved(key: string): boolean {
    return this.#remembers && this.#lately.has(key);
  }

  begin(key: string, namespace: NamespaceIndex, slotBytes: number): Awaited {
    const awaited: Awaited = {
      ...{ key, namespace, slotBytes, removed: false },
      transientsRemoved: this.#remembers && this.#lately.transients,
      anchorsBefore: this.#pruned.number,
      anchorsSinceMs: this.#rememberedSince(),
    };
    const others = this.#byKey.get(key);
    if (others === undefined) this.#byKey.set(key, [awaited]);
    else others.push(awaited);
    this.slotBytes += slotBytes;
    return awaited;
  }

  end(awaited: Awaited): void {
    const left = this.#byKey.get(awaited.key)!.filter((other) => other !== awaited);
    if (left.length > 0) this.#byKey.set(awaited.key, left);
    else this.#byKey.delete(awaited.key);
    this.slotBytes -= awaited.slotBytes;
    if (this.areNone) this.#forgetAnchors();
  }

  /** The block whose key's words start at `words[at]` is removed, wherever it is. */
  removed(words: Uint32Array, at: number): void {
    if (!this.minds) return;
    const key = hexOfKey(words, at);
    if (this.#remembers) this.#lately.add(key);
    for (const awaited of this.#byKey.get(key) ?? []) awaited.removed = true;
  }

  /** The same of a block that is here. */
  removedNode(table: TableView, node: NodeId): void {
    if (this.minds) this.removed(keyOf(table, node), 0);
  }

  /** Everything is. */
  allRemoved(): void {
    if (this.#remembers) this.#lately.addEverything();
    for (const awaited of this.#all()) awaited.removed = true;
  }

  /** Blocks that are transient are, under whatever name. */
  transientsRemoved(): void {
    if (this.#remembers) this.#lately.addTransients();
    for (const awaited of this.#all()) awaited.transientsRemoved = true;
  }

  /** An engine of this host wrote the block: it may have been removed before, and is new. */
  written(table: TableView, node: NodeId): void {
    if (!this.#lately.hasNoKeys) this.#lately.delete(hexOfKey(keyOf(table, node), 0));
  }

  /** All that follows blocks with this key or other name (hex) is, be they here or not. */
  prunedBelow(name: string): void {
    if (!this.minds) return;
    if (this.#anchors.size >= ANCHORS_MAX && !this.#anchors.has(name)) this.#forgetAnchors();
    this.#pruned = { number: this.#pruned.number + 1, ms: this.#clock.monotonicMs() };
    this.#anchors.delete(name);
    this.#anchors.set(name, this.#pruned);
    if (this.#anchors.size <= ANCHORS_MAX) return;
    this.#anchors.clear();
    this.#lost = this.#pruned;
    if (this.#remembers) this.#lately.addEverything();
  }

  /** Whether anything was pruned that it may follow. */
  mindsPrunes(awaited: Awaited): boolean {
    return counts(this.#pruned, awaited);
  }

  /** Whether all that follows a block with this key or name (hex) was, or that cannot be told. */
  isAnchor(name: string, awaited: Awaited): boolean {
    return counts(this.#lost, awaited) || counts(this.#anchors.get(name) ?? NEVER, awaited);
  }

  #rememberedSince(): number {
    const isOn = this.#remembers;
    return isOn ? this.#clock.monotonicMs() - REMEMBERED_MS : Number.POSITIVE_INFINITY;
  }

  /** Those that count for nothing that is on its way or may set out. */
  #forgetAnchors(): void {
    let before = this.#pruned.number;
    let sinceMs = this.#rememberedSince();
    for (const { anchorsBefore, anchorsSinceMs } of this.#all()) {
      before = Math.min(before, anchorsBefore);
      sinceMs = Math.min(sinceMs, anchorsSinceMs);
    }
    for (const [name, { number, ms }] of this.#anchors) {
      if (number > before || ms > sinceMs) return;
      this.#anchors.delete(name);
    }
  }

  #all(): Awaited[] {
    return [...this.#byKey.values()].flat();
  }
}

function counts({ number, ms }: Pruned, awaited: Awaited): boolean {
  return number > awaited.anchorsBefore || ms > awaited.anchorsSinceMs;
}

function keyOf(table: TableView, node: NodeId): Uint32Array {
  const key = new Uint32Array(8);
  table.readKey(node, key, 0);
  return key;
}
