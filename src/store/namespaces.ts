import type { NamespaceIndex } from "../core/index.ts";
import { BlockMacs, type MacBlock, type Native, type Queue } from "../native/index.ts";

/** Maximum number of namespaces: the table stores u16 indices. */
const NAMESPACES_MAX = 65_535;

/** Description of a namespace by engines; part of the input of its key. */
export interface NamespaceFacts {
  readonly model: string;
  readonly blockTokens: number;
  /**
   * Scheme by which chain keys are derived from tokens; null if blocks are named by token digests.
   */
  readonly chain: string | null;
}

/** Assigns small numbers to namespaces, so that a table entry stores 2 bytes instead of 32. */
export class Namespaces {
  readonly #byKey = new Map<string, NamespaceIndex>();
  readonly #keys: Uint8Array[] = [];
  readonly #facts = new Map<NamespaceIndex, NamespaceFacts>();
  readonly #macKeyIds = new Map<NamespaceIndex, string>();
  /** In the order of their latest description. */
  readonly #listed = new Set<NamespaceIndex>();

  /**
   * The number of this namespace key (32 bytes), assigned at first use; null if all 65,535 are
   * taken.
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

  /** The number of this namespace key, without assigning one; null if it has none. */
  find(namespaceKey: Uint8Array): NamespaceIndex | null {
    return this.#byKey.get(namespaceKey.toHex()) ?? null;
  }

  /** The key with this number; null if the number is not assigned. */
  keyOf(index: NamespaceIndex): Uint8Array | null {
    return this.#keys[index - 1] ?? null;
  }

  /**
   * Records an engine's description of a namespace. `isListed`: the namespace belongs to a
   * connection. Namespaces of requests are numerous, and a router cannot name blocks in them.
   */
  describe(index: NamespaceIndex, facts: NamespaceFacts, isListed = true): void {
    this.#facts.set(index, facts);
    if (!isListed) return;
    this.#listed.delete(index);
    this.#listed.add(index);
  }

  /** The listed namespaces, in the order of their latest description. */
  described(): (NamespaceFacts & { readonly key: Uint8Array })[] {
    return [...this.#listed].map((index) => {
      return { ...this.#facts.get(index)!, key: this.#keys[index - 1]! };
    });
  }

  /** Sets the identifier of the key that authenticates blocks of the namespace. */
  setMacKeyId(index: NamespaceIndex, id: string): void {
    this.#macKeyIds.set(index, id);
  }

  /** Null if the namespace has no key, or no engine has described it since the start. */
  macKeyIdOf(index: NamespaceIndex): string | null {
    return this.#macKeyIds.get(index) ?? null;
  }

  /** Null if no engine has described the namespace since the start. */
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

/** Up to this size a MAC is verified on the event loop, in some ten microseconds. */
const INLINE_BYTES = 256 * 1024;

const ABSENT = "no MAC, but its namespace requires one";
const WRONG = "MAC mismatch with its namespace's key";

/** Whether the MAC is present: 16 zero bytes mean that the block has none. */
export function isMac(mac: Uint8Array): boolean {
  return mac.some((byte) => byte !== 0);
}

/**
 * The namespaces with a MAC key, and the keys of this agent. Blocks of a namespace with a key are
 * accepted only with a MAC. If the agent has the key, it verifies the MAC; otherwise it stores the
 * MAC for the clients, which verify each copy.
 */
export class NamespaceMacs {
  readonly #queue: Queue;
  readonly #namespaces: Namespaces;
  readonly #byId: ReadonlyMap<string, BlockMacs>;

  /** `keys`: 16-byte keys by identifier. */
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

  /** The reason to reject the block, or null. Takes about 100 µs per MiB. */
  faultOf(namespace: NamespaceIndex, mac: Uint8Array, block: () => MacBlock): string | null {
    const how = this.#judge(namespace, mac);
    if (how === null || typeof how === "string") return how;
    return how.check(block(), mac) ? null : WRONG;
  }

  /** As `faultOf`, but on a native thread if the block is long. */
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
   * Judges a block whose checksum is correct but whose copy did not verify at a reader. Without the
   * key the verdict is `unknown`, since any client that knows the key's identifier could report any
   * block.
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

  /** Null if there is nothing to verify; a string is the reason to reject the block. */
  #judge(namespace: NamespaceIndex, mac: Uint8Array): BlockMacs | string | null {
    const id = this.#namespaces.macKeyIdOf(namespace);
    if (id === null) return null;
    if (!isMac(mac)) return ABSENT;
    return this.#byId.get(id) ?? null;
  }
}
