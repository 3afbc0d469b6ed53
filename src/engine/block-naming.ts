import { DIGEST_BYTES, type NamespaceIndex } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import type { AddressBatch, BlockStore, LookupRank } from "../store/index.ts";
import type { NamespaceRef } from "./connection.ts";
import * as protocol from "./protocol/index.ts";

/**
 * Maximum multimodal items of a prompt. Naming item `n` hashes the list of all items up to `n`, so
 * the work grows with the square of their number.
 */
const MEDIA_MAX = 512;

export interface BlockNamingParts {
  readonly store: BlockStore;
  readonly hashing: Hashing;
  readonly prompts: RememberedPrompts;
  /** Scratch memory. A call fills and reads it before it returns. */
  readonly batch: AddressBatch;
  readonly named: { readonly digests: Uint8Array };
}

/** Computes digests and keys of the blocks that a request names, for each rank. */
export class BlockNaming {
  readonly #parts: BlockNamingParts;

  constructor(parts: BlockNamingParts) {
    this.#parts = parts;
  }

  /**
   * Computes block digests from `count` chain keys, or copies ready-made digests if `itemBytes` is
   * null.
   */
  byKeys(
    ref: NamespaceRef,
    items: Uint8Array,
    count: number,
    itemBytes: number | null,
    layer: number,
  ): LookupRank {
    const { digests } = this.#parts.batch;
    if (itemBytes === null) digests.set(items.subarray(0, count * DIGEST_BYTES));
    else this.#parts.hashing.chainDigests(ref.key, items, itemBytes, digests);
    return this.#rankOf(ref, count, layer);
  }

  /**
   * Returns the whole prompt of a request that names tokens: the remembered prompt that it
   * continues, followed by its own tokens. Null if that remembered prompt is unknown.
   */
  promptOf(
    request: protocol.LookupRequest,
    namespace: NamespaceIndex,
    blockTokens: number,
  ): Prompt | null {
    const tokens = wordsOf(request.items);
    if (request.parent === null) return { tokens, media: request.media };
    const before = this.#parts.prompts.find(namespace, request.parent, blockTokens);
    if (before === null) return null;
    const start = before.tokens.length;
    const all = new Uint32Array(start + tokens.length);
    all.set(before.tokens);
    all.set(tokens, start);
    const media = request.media.filter(({ position }) => position >= start);
    return { tokens: all, media: [...before.media, ...media] };
  }

  /**
   * Computes the digests of the last `count` blocks of the prompt. If `mayRemember`, keeps the
   * prompt so that other requests can continue it.
   */
  byPrompt(
    ref: NamespaceRef,
    prompt: Prompt,
    blockTokens: number,
    count: number,
    layer: number,
    mayRemember: boolean,
  ): LookupRank {
    const { hashing } = this.#parts;
    const blocks = Math.floor(prompt.tokens.length / blockTokens);
    const digests = this.#parts.named.digests.subarray(0, blocks * DIGEST_BYTES);
    hashing.prefixDigests(ref.key, prompt.tokens, blockTokens, this.#parts.named.digests);
    nameMedia(hashing, ref.key, prompt.media, blockTokens, digests);
    if (mayRemember) this.#parts.prompts.add(ref.index, prompt, digests);
    const { batch } = this.#parts;
    batch.digests.set(digests.subarray((blocks - count) * DIGEST_BYTES));
    return this.#rankOf(ref, count, layer);
  }

  #rankOf({ index }: NamespaceRef, count: number, layer: number): LookupRank {
    const { batch } = this.#parts;
    batch.count = count;
    batch.layer = layer;
    this.#parts.store.deriveKeys(batch, false);
    return {
      namespace: index,
      digests: batch.digests.slice(0, count * DIGEST_BYTES),
      keys: batch.keys.slice(0, count * 8),
    };
  }

  /** Maximum blocks of a prompt that this object can name. */
  get blocksMax(): number {
    return this.#parts.named.digests.length / DIGEST_BYTES;
  }
}

/**
 * Computes the names of a request's blocks rank by rank, each rank as one piece of work. The result
 * is `unknown` if the request continues a prompt that is not remembered. The frame's memory is
 * valid only during the first piece; later pieces read copies.
 */
export function* requestedBlocks(
  naming: BlockNaming,
  request: protocol.LookupRequest,
  refs: readonly NamespaceRef[],
  blockTokens: number,
): Generator<void, readonly LookupRank[] | protocol.Refusal | "unknown"> {
  const { kind, layer, count } = request;
  const ranks: LookupRank[] = [];
  if (kind !== protocol.IdentifyKind.tokens) {
    const bytes = protocol.IDENTIFY_ITEM_BYTES[kind];
    const items = request.items.slice();
    for (const ref of refs) {
      if (ranks.length > 0) yield;
      ranks.push(naming.byKeys(ref, items, count, bytes, layer));
    }
    return ranks;
  }
  const prompt = naming.promptOf(request, refs[0].index, blockTokens);
  if (prompt === null) return "unknown";
  if (prompt.media.length > MEDIA_MAX) {
    return protocol.refusal(
      protocol.FrameStatus.limit,
      `lookup: a prompt has at most ${MEDIA_MAX} multimodal items`,
    );
  }
  if (prompt.tokens.length / blockTokens > naming.blocksMax) {
    return protocol.refusal(
      protocol.FrameStatus.limit,
      `lookup: a prompt has at most ${naming.blocksMax} blocks`,
    );
  }
  const blocks = Math.floor(count / blockTokens);
  for (const ref of refs) {
    const isFirst = ranks.length === 0;
    if (!isFirst) yield;
    ranks.push(naming.byPrompt(ref, prompt, blockTokens, blocks, layer, isFirst));
  }
  return ranks;
}

/** Copies bytes of any alignment to an array of tokens. */
export function wordsOf(bytes: Uint8Array): Uint32Array {
  const words = new Uint32Array(bytes.length / 4);
  new Uint8Array(words.buffer).set(bytes);
  return words;
}

/**
 * Context string of the key derivation for multimodal items. Changing it changes every such name;
 * see docs/identity.md.
 */
const MEDIA_CONTEXT = "hearth 2026-11 multimodal key v1";
/** Maximum bytes of remembered prompts. */
const REMEMBERED_BYTES = 64 * 2 ** 20;
/**
 * Estimated bytes of a remembered prompt for each block, in addition to its tokens, and for each
 * multimodal item, in addition to its name.
 */
const BYTES_A_BLOCK = 256;
const BYTES_AN_ITEM = 256;

/** The parts of a prompt that determine the names of its blocks. */
interface Prompt {
  readonly tokens: Uint32Array;
  /** Multimodal items, in ascending order of position. */
  readonly media: readonly protocol.MediaItem[];
}

/**
 * Replaces in `digests` the digest of each block that contains, or comes later in the prompt than,
 * the first token of a multimodal item. On entry `digests` holds digests of tokens only: 32 bytes
 * per block, from the start of the prompt.
 */
export function nameMedia(
  hashing: Hashing,
  namespaceKey: Uint8Array,
  media: readonly protocol.MediaItem[],
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
    while (items < media.length && media[items].position < (i + 1) * blockTokens) items++;
    if (items > before)
      named.set(hashing.blake3(protocol.encodeMedia(media.slice(0, items))), DIGEST_BYTES);
    const digest = digests.subarray(DIGEST_BYTES * i, DIGEST_BYTES * (i + 1));
    named.set(digest);
    digest.set(hashing.blake3Keyed(key, named));
  }
}

interface Remembered {
  readonly namespace: NamespaceIndex;
  readonly prompt: Prompt;
  /** Digests (hex) by which a request can refer to this prompt. */
  readonly names: Set<string>;
  readonly bytes: number;
}

/**
 * Prompts by the digests of their blocks, so that a request can continue a prompt by naming its
 * last block. Bounded in bytes; the least recently used prompt is evicted first.
 */
export class RememberedPrompts {
  readonly #bytesMax: number;
  readonly #byName = new Map<string, { readonly from: Remembered; readonly blocks: number }>();
  /** All remembered prompts, least recently used first. */
  readonly #all = new Set<Remembered>();
  #bytes = 0;

  constructor(bytesMax = REMEMBERED_BYTES) {
    this.#bytesMax = bytesMax;
  }

  /**
   * Returns the prompt up to the end of the block with this digest. Null if the block is unknown or
   * belongs to another namespace.
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

  /** Remembers a prompt and the digests of all its full blocks. Both are copied. */
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
