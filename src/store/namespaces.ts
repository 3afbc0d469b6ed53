import type { NamespaceIndex } from "../core/index.ts";

/** As many as a node of the table can tell apart. */
const NAMESPACES_MAX = 65_535;

/** What engines said of a namespace; part of what its key stands for. */
export interface NamespaceFacts {
  readonly model: string;
  readonly blockTokens: number;
  /** How its chain keys follow from tokens; null: blocks are named by digests of tokens. */
  readonly chain: string | null;
}

/**
 * Small numbers for namespaces, so that a node of the table carries two bytes and not thirty-two.
 */
export class Namespaces {
  readonly #byKey = new Map<string, NamespaceIndex>();
  readonly #keys: Uint8Array[] = [];
  readonly #facts = new Map<NamespaceIndex, NamespaceFacts>();
  readonly #macKeyIds = new Map<NamespaceIndex, string>();
  /** The one described last is at the end. */
  readonly #listed = new Set<NamespaceIndex>();

  /**
   * The number of this namespace key (32 bytes), given on first sight; null once 65,535 were seen.
   */
  indexOf(namespaceKey: Uint8Array): NamespaceIndex | null {
    const name = namespaceKey.toHex();
    const known = this.#byKey.get(name);
    if (known !== undefined) return known;
    if (this.#byKey.size === NAMESPACES_MAX) return null;
    const index = (this.#byKey.size + 1) as NamespaceIndex;
    this.#byKey.set(name, index);
    this.#keys.push(namespaceKey.slice());
    return index;
  }

  /** Its number, where it has one: none is given. */
  find(namespaceKey: Uint8Array): NamespaceIndex | null {
    return this.#byKey.get(namespaceKey.toHex()) ?? null;
  }

  /** The key that was given this number; null where none was. */
  keyOf(index: NamespaceIndex): Uint8Array | null {
    return this.#keys[index - 1] ?? null;
  }

  /**
   * An engine that uses it said what it is. Listed are those of connections: those of requests are
   * many, and a router cannot name blocks in them.
   */
  describe(index: NamespaceIndex, facts: NamespaceFacts, isListed = true): void {
    this.#facts.set(index, facts);
    if (!isListed) return;
    this.#listed.delete(index);
    this.#listed.add(index);
  }

  /** The listed ones; the one described last is at the end. */
  described(): (NamespaceFacts & { readonly key: Uint8Array })[] {
    return [...this.#listed].map((index) => {
      return { ...this.#facts.get(index)!, key: this.#keys[index - 1]! };
    });
  }

  /** Blocks of it are authenticated with the key of this identifier. */
  setMacKeyId(index: NamespaceIndex, id: string): void {
    this.#macKeyIds.set(index, id);
  }

  /** Null: it has no key, or no engine has said since the start. */
  macKeyIdOf(index: NamespaceIndex): string | null {
    return this.#macKeyIds.get(index) ?? null;
  }

  /** Null: no engine has said since the start. */
  factsOf(index: NamespaceIndex): NamespaceFacts | null {
    return this.#facts.get(index) ?? null;
  }

  /** All keys, by number from 1. */
  keys(): readonly Uint8Array[] {
    return this.#keys;
  }

  get size(): number {
    return this.#byKey.size;
  }
}
