import { DIGEST_BYTES, type NamespaceIndex } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import { encodeMedia, type MediaItem } from "./protocol/index.ts";

/** Fixed in the program, as the derivation of the namespace key is; see the page on identity. */
const MEDIA_CONTEXT = "hearth 2026-11 multimodal key v1";
/** Bytes of prompts that are remembered for requests that continue them. */
const REMEMBERED_BYTES = 64 * 2 ** 20;
/** What a block of a remembered prompt costs beside its tokens, and an item beside its name. */
const BYTES_A_BLOCK = 256;
const BYTES_AN_ITEM = 256;

/** A prompt, as far as the names of its blocks depend on it. */
export interface Prompt {
  readonly tokens: Uint32Array;
  /** In ascending order of position. */
  readonly media: readonly MediaItem[];
}

/**
 * Renames the blocks that contain or follow the start of a multimodal item: `digests` holds the
 * digests of the tokens, 32 bytes a block from the prompt's start.
 */
export function nameMedia(
  hashing: Hashing,
  namespaceKey: Uint8Array,
  media: readonly MediaItem[],
  blockTokens: number,
  digests: Uint8Array,
): void {
  const first = media[0];
  if (first === undefined) return;
  const key = hashing.blake3DeriveKey(MEDIA_CONTEXT, namespaceKey);
  const named = new Uint8Array(2 * DIGEST_BYTES);
  let items = 0;
  const blocks = digests.length / DIGEST_BYTES;
  for (let i = Math.floor(first.position / blockTokens); i < blocks; i++) {
    const before = items;
    while (items < media.length && media[items]!.position < (i + 1) * blockTokens) items++;
    if (items > before) named.set(hashing.blake3(encodeMedia(media.slice(0, items))), DIGEST_BYTES);
    const digest = digests.subarray(DIGEST_BYTES * i, DIGEST_BYTES * (i + 1));
    named.set(digest);
    digest.set(hashing.blake3Keyed(key, named));
  }
}

interface Remembered {
  readonly namespace: NamespaceIndex;
  readonly prompt: Prompt;
  /** Digests that lead to it, in hex. */
  readonly names: Set<string>;
  readonly bytes: number;
}

/**
 * Prompts by the digests of their blocks, so that a request can continue one by naming its last
 * block. Bounded in bytes; the prompt that was named longest ago goes first.
 */
export class RememberedPrompts {
  readonly #bytesMax: number;
  readonly #byName = new Map<string, { readonly from: Remembered; readonly blocks: number }>();
  /** The one used longest ago first. */
  readonly #all = new Set<Remembered>();
  #bytes = 0;

  constructor(bytesMax = REMEMBERED_BYTES) {
    this.#bytesMax = bytesMax;
  }

  /**
   * The prompt up to the end of the block of this digest; null: it is not known any more, or is of
   * another namespace.
   */
  find(namespace: NamespaceIndex, digest: Uint8Array, blockTokens: number): Prompt | null {
    const found = this.#byName.get(digest.toHex());
    if (found === undefined || found.from.namespace !== namespace) return null;
    const { from, blocks } = found;
    this.#all.delete(from);
    this.#all.add(from);
    const end = blocks * blockTokens;
    const media = from.prompt.media.filter(({ position }) => position < end);
    return { tokens: from.prompt.tokens.subarray(0, end), media };
  }

  /** `digests`: of all full blocks of the prompt. Both are copied. */
  add(namespace: NamespaceIndex, prompt: Prompt, digests: Uint8Array): void {
    const blocks = digests.length / DIGEST_BYTES;
    if (blocks === 0) return;
    const nameOf = (i: number) =>
      digests.subarray(DIGEST_BYTES * i, DIGEST_BYTES * (i + 1)).toHex();
    if (this.#byName.has(nameOf(blocks - 1))) return;
    const { tokens, media } = prompt;
    const items = media.reduce((sum, { name }) => sum + BYTES_AN_ITEM + name.length, 0);
    const bytes = tokens.byteLength + BYTES_A_BLOCK * blocks + items;
    if (bytes > this.#bytesMax) return;
    const kept = { tokens: tokens.slice(), media };
    const added = { namespace, prompt: kept, names: new Set<string>(), bytes };
    for (let i = 0; i < blocks; i++) {
      const name = nameOf(i);
      this.#forgetName(name);
      added.names.add(name);
      this.#byName.set(name, { from: added, blocks: i + 1 });
    }
    this.#all.add(added);
    this.#bytes += bytes;
    while (this.#bytes > this.#bytesMax) {
      const [oldest] = this.#all;
      for (const name of [...oldest!.names]) this.#forgetName(name);
    }
  }

  #forgetName(name: string): void {
    const known = this.#byName.get(name);
    if (known === undefined) return;
    this.#byName.delete(name);
    known.from.names.delete(name);
    if (known.from.names.size > 0) return;
    this.#all.delete(known.from);
    this.#bytes -= known.from.bytes;
  }
}
