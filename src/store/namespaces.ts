import type { NamespaceIndex } from "../core/index.ts";
import { BlockMacs, type MacBlock, type Native, type Queue } from "../native/index.ts";

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

/** Up to here a MAC is checked on the event loop, in some ten microseconds. */
const INLINE_BYTES = 256 * 1024;

const ABSENT = "it has no MAC, which blocks of its namespace have";
const WRONG = "its MAC is not that of its namespace's key";

/** 16 zero bytes stand for a block without a MAC. */
export function isMac(mac: Uint8Array): boolean {
  return mac.some((byte) => byte !== 0);
}

/**
 * Which namespaces have a key, and the keys that this agent was given. Blocks of a namespace with a
 * key are believed with a MAC only. If the agent has the key it checks the MAC; without it the MAC
 * is kept for the clients, which check each copy.
 */
export class NamespaceMacs {
  readonly #queue: Queue;
  readonly #namespaces: Namespaces;
  readonly #byId: ReadonlyMap<string, BlockMacs>;

  /** `keys`: by identifier. */
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

  /** What is wrong with a block that is about to be believed, or null. About 100 µs a MiB. */
  faultOf(namespace: NamespaceIndex, mac: Uint8Array, block: () => MacBlock): string | null {
    const how = this.#judge(namespace, mac);
    if (how === null || typeof how === "string") return how;
    return how.check(block(), mac) ? null : WRONG;
  }

  /** As `faultOf`, on a native thread if the block is long. */
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
   * Of a block whose checksum is right, and whose reader says that its copy did not verify. Without
   * the key that is `unknown`: whoever knows the key's identifier could say so of any block.
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

  /** Null: there is nothing to check; a text: it is refused as it is. */
  #judge(namespace: NamespaceIndex, mac: Uint8Array): BlockMacs | string | null {
    const id = this.#namespaces.macKeyIdOf(namespace);
    if (id === null) return null;
    if (!isMac(mac)) return ABSENT;
    return this.#byId.get(id) ?? null;
  }
}
