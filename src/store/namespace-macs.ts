import type { NamespaceIndex } from "../core/index.ts";
import { BlockMacs, type MacBlock, type Native, type Queue } from "../native/index.ts";
import type { Namespaces } from "./namespaces.ts";

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
