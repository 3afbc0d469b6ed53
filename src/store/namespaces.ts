import type { NamespaceIndex } from "../core/index.ts";
import { BlockMacs, type MacBlock, type Native, type Queue } from "../native/index.ts";

/** Maximum number of namespaces: the block table stores the index as u16. */
const NAMESPACES_MAX = 65_535;

/** Description of a namespace, supplied by engines. The namespace key is derived from it. */
export interface NamespaceFacts {
  readonly model: string;
  readonly blockTokens: number;
  /**
   * Name of the scheme that derives chain keys from tokens; null if engines name blocks by token
   * digests.
   */
  readonly chain: string | null;
}

/**
 * Assigns small numbers to namespaces, so that a block table entry stores 2 bytes instead of a
 * 32-byte key.
 */
export class Namespaces {
  readonly #byKey = new Map<string, NamespaceIndex>();
  readonly #keys: Uint8Array[] = [];
  readonly #facts = new Map<NamespaceIndex, NamespaceFacts>();
  readonly #macKeyIds = new Map<NamespaceIndex, string>();
  /** Listed namespaces, in the order of their latest description. */
  readonly #listed = new Set<NamespaceIndex>();

  /**
   * Returns the number of this 32-byte namespace key. Assigns one at first use; returns null if all
   * 65,535 are taken.
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

  /** Returns the number of this namespace key, or null if none was assigned. */
  find(namespaceKey: Uint8Array): NamespaceIndex | null {
    return this.#byKey.get(namespaceKey.toHex()) ?? null;
  }

  /** Returns the key with this number, or null if the number is not assigned. */
  keyOf(index: NamespaceIndex): Uint8Array | null {
    return this.#keys[index - 1] ?? null;
  }

  /**
   * Records an engine's description of a namespace. `isListed`: true for the namespace of a
   * connection. Namespaces of single requests are not listed, because they are numerous and a
   * router cannot name blocks in them.
   */
  describe(index: NamespaceIndex, facts: NamespaceFacts, isListed = true): void {
    this.#facts.set(index, facts);
    if (!isListed) return;
    this.#listed.delete(index);
    this.#listed.add(index);
  }

  /** Returns the listed namespaces, in the order of their latest description. */
  described(): (NamespaceFacts & { readonly key: Uint8Array })[] {
    return [...this.#listed].map((index) => {
      return { ...this.#facts.get(index)!, key: this.#keys[index - 1] };
    });
  }

  /** Sets the identifier of the key that authenticates blocks of the namespace. */
  setMacKeyId(index: NamespaceIndex, id: string): void {
    this.#macKeyIds.set(index, id);
  }

  /**
   * Returns the identifier of the namespace's MAC key. Null if it has none, or no engine has
   * described the namespace since the agent started.
   */
  macKeyIdOf(index: NamespaceIndex): string | null {
    return this.#macKeyIds.get(index) ?? null;
  }

  /**
   * Returns the description of the namespace, or null if no engine has described it since the agent
   * started.
   */
  factsOf(index: NamespaceIndex): NamespaceFacts | null {
    return this.#facts.get(index) ?? null;
  }

  /** Returns all namespace keys in the order of their numbers; the first has number 1. */
  keys(): readonly Uint8Array[] {
    return this.#keys;
  }

  get size(): number {
    return this.#byKey.size;
  }
}

/** Block size up to which a MAC is verified on the event loop. Takes some ten microseconds. */
const INLINE_BYTES = 256 * 1024;

const ABSENT = "no MAC, but its namespace requires one";
const WRONG = "MAC mismatch with its namespace's key";

/** Returns whether the block has a MAC. 16 zero bytes mean that it has none. */
export function isMac(mac: Uint8Array): boolean {
  return mac.some((byte) => byte !== 0);
}

/**
 * Knows which namespaces have a MAC key, and verifies MACs. A block of a namespace with a key is
 * accepted only with a MAC. If the agent has the key, it verifies the MAC. Otherwise it stores the
 * MAC, and the clients verify each copy.
 */
export class NamespaceMacs {
  readonly #queue: Queue;
  readonly #namespaces: Namespaces;
  readonly #byId: ReadonlyMap<string, BlockMacs>;

  /** `keys`: MAC keys of this agent by identifier, 16 bytes each. */
  constructor(
    native: Native,
    queue: Queue,
    namespaces: Namespaces,
    keys: ReadonlyMap<string, Uint8Array>,
  ) {
    this.#queue = queue;
    this.#namespaces = namespaces;
    this.#byId = new Map([...keys].map(([id, key]) => [id, new BlockMacs(native, key)]));
  }

  /**
   * Verifies the MAC of a block. Returns the reason to reject the block, or null. Takes about 100
   * µs per MiB.
   */
  faultOf(namespace: NamespaceIndex, mac: Uint8Array, block: () => MacBlock): string | null {
    const how = this.#judge(namespace, mac);
    if (how === null || typeof how === "string") return how;
    return how.check(block(), mac) ? null : WRONG;
  }

  /** Verifies as `faultOf` does, but on a native thread if the block is longer than 256 KiB. */
  async faultLater(
    namespace: NamespaceIndex,
    mac: Uint8Array,
    blockOf: () => MacBlock,
  ): Promise<string | null> {
    const how = this.#judge(namespace, mac);
    if (how === null || typeof how === "string") return how;
    const block = blockOf();
    if (block.bytes <= INLINE_BYTES) return how.check(block, mac) ? null : WRONG;
    return (await how.checkLater(this.#queue, block, mac)) ? null : WRONG;
  }

  /**
   * Checks the MAC of a block whose checksum is correct but whose copy failed verification at a
   * reader. Returns `unknown` if the agent lacks the key: otherwise any client that knows the key's
   * identifier could have any block removed.
   */
  async judge(
    namespace: NamespaceIndex,
    mac: Uint8Array,
    blockOf: () => MacBlock,
  ): Promise<"right" | "planted" | "unknown"> {
    const id = this.#namespaces.macKeyIdOf(namespace);
    if (id === null) return "right";
    if ((await this.faultLater(namespace, mac, blockOf)) !== null) return "planted";
    return this.#byId.has(id) ? "right" : "unknown";
  }

  /**
   * Returns the MAC functions to verify with, null if there is nothing to verify, or the reason to
   * reject the block.
   */
  #judge(namespace: NamespaceIndex, mac: Uint8Array): BlockMacs | string | null {
    const id = this.#namespaces.macKeyIdOf(namespace);
    if (id === null) return null;
    if (!isMac(mac)) return ABSENT;
    return this.#byId.get(id) ?? null;
  }
}
