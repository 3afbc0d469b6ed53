import { DIGEST_BYTES, type NamespaceIndex } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import type { AddressBatch, BlockStore, LookupRank } from "../store/index.ts";
import { nameMedia, type Prompt, type RememberedPrompts } from "./block-names.ts";
import type { NamespaceRef } from "./connection-namespaces.ts";
import {
  FrameStatus,
  IDENTIFY_ITEM_BYTES,
  IdentifyKind,
  type LookupRequest,
  type Refusal,
  refusal,
} from "./protocol/index.ts";

/** Multimodal items of one prompt: each new one hashes the list of all before it. */
const MEDIA_MAX = 512;

export interface BlockNamingParts {
  readonly store: BlockStore;
  readonly hashing: Hashing;
  readonly prompts: RememberedPrompts;
  /** Filled and read before a call returns. */
  readonly batch: AddressBatch;
  readonly named: { readonly digests: Uint8Array };
}

/** Digests and keys of the blocks that a request names, for each rank. */
export class BlockNaming {
  readonly #parts: BlockNamingParts;

  constructor(parts: BlockNamingParts) {
    this.#parts = parts;
  }

  /** From `count` chain keys, or digests where `itemBytes` is null. */
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

  /** The whole prompt of a request by tokens; null: what it continues is not known any more. */
  promptOf(request: LookupRequest, namespace: NamespaceIndex, blockTokens: number): Prompt | null {
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

  /** The last `count` blocks of the prompt. `mayRemember`: other requests may continue it. */
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

  /** Blocks of the longest prompt that can be named. */
  get blocksMax(): number {
    return this.#parts.named.digests.length / DIGEST_BYTES;
  }
}

/**
 * The blocks of a request, rank by rank, each a piece of work; `unknown`: it continues a prompt
 * that is forgotten. Everything behind the first piece reads copies: the frame is gone by then.
 */
export function* requestedBlocks(
  naming: BlockNaming,
  request: LookupRequest,
  refs: readonly NamespaceRef[],
  blockTokens: number,
): Generator<void, readonly LookupRank[] | Refusal | "unknown"> {
  const { kind, layer, count } = request;
  const ranks: LookupRank[] = [];
  if (kind !== IdentifyKind.tokens) {
    const bytes = IDENTIFY_ITEM_BYTES[kind];
    const items = request.items.slice();
    for (const ref of refs) {
      if (ranks.length > 0) yield;
      ranks.push(naming.byKeys(ref, items, count, bytes, layer));
    }
    return ranks;
  }
  const prompt = naming.promptOf(request, refs[0]!.index, blockTokens);
  if (prompt === null) return "unknown";
  if (prompt.media.length > MEDIA_MAX) {
    return refusal(FrameStatus.limit, `lookup: a prompt has at most ${MEDIA_MAX} multimodal items`);
  }
  if (prompt.tokens.length / blockTokens > naming.blocksMax) {
    return refusal(FrameStatus.limit, `lookup: a prompt has at most ${naming.blocksMax} blocks`);
  }
  const blocks = Math.floor(count / blockTokens);
  for (const ref of refs) {
    const isFirst = ranks.length === 0;
    if (!isFirst) yield;
    ranks.push(naming.byPrompt(ref, prompt, blockTokens, blocks, layer, isFirst));
  }
  return ranks;
}

/** A frame's bytes lie at any alignment; tokens are words. */
export function wordsOf(bytes: Uint8Array): Uint32Array {
  const words = new Uint32Array(bytes.length / 4);
  new Uint8Array(words.buffer).set(bytes);
  return words;
}
