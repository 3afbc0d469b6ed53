import { type Native, sequenceHashes } from "../../native/index.ts";
import { localHash, mediaHash, saltSeed, saltShare, sequenceHash } from "../dynamo/index.ts";
import type { BlockExtras, EngineEvent } from "../engine-event.ts";

/** Consecutive blocks, as one event has them. */
export interface EventBlocks {
  /** Of whole blocks. */
  readonly tokens: Uint32Array;
  readonly loraName: string | null;
  /** One entry a block; null: none has any. */
  readonly extras: readonly (BlockExtras | null)[] | null;
}

/** What is before the first of them. */
export interface ChainStart {
  readonly parent: bigint | null;
  /** What the prompt's salt adds to seeds. */
  readonly salt: bigint;
}

export interface BlockChain {
  readonly local: BigUint64Array;
  readonly sequence: BigUint64Array;
}

/** Hashes of each block's own tokens, and of the prefixes that end there. */
export function chainOf(
  native: Native,
  blockTokens: number,
  { tokens, loraName, extras }: EventBlocks,
  { parent, salt }: ChainStart,
): BlockChain {
  const blocks = tokens.length / blockTokens;
  const seed = BigInt.asUintN(64, saltSeed(loraName, null) + salt);
  const into = { local: new BigUint64Array(blocks), sequence: new BigUint64Array(blocks) };
  sequenceHashes(native, tokens, { blockTokens, seed, parent }, into);
  if (extras === null) return into;
  let last = parent;
  for (let i = 0; i < blocks; i++) {
    const media = mediaOf(extras[i] ?? null);
    if (media.length > 0) {
      const own = tokens.subarray(i * blockTokens, (i + 1) * blockTokens);
      into.local[i] = localHash(own, seed, media);
    }
    last = sequenceHash(last, into.local[i]!);
    into.sequence[i] = last;
  }
  return into;
}

/** Neither LoRA, nor salt, nor anything else beside the tokens. */
export function isPlain({ loraName, extras }: EventBlocks, { salt }: ChainStart): boolean {
  if (salt !== 0n || loraName !== null) return false;
  return extras?.every((one) => isEmpty(one)) ?? true;
}

/** Dynamo's router marks salts so when it hands them to vLLM. */
const SALT_PREFIX = "dynamo-cache-salt:";

/** Of the first block; null: it says none, and the chain has its parent's. */
export function saltOf(event: EngineEvent & { kind: "stored" }): string | null {
  const salt = event.cacheSalt ?? event.extras?.[0]?.cacheSalt ?? null;
  if (salt === null || salt === "") return null;
  return salt.startsWith(SALT_PREFIX) ? salt.slice(SALT_PREFIX.length) : salt;
}

/** The share of seeds of a salt; of none, the parent's. */
export function shareOf(salt: string | null, parents: bigint): bigint {
  return salt === null ? parents : saltShare(salt);
}

function isEmpty(extras: BlockExtras | null): boolean {
  if (extras === null) return true;
  const { loraName, cacheSalt, media, embeddings } = extras;
  return loraName === null && cacheSalt === null && media.length === 0 && embeddings === null;
}

/** What makes a block's hash another than that of its tokens; no router can know embeddings. */
function mediaOf(extras: BlockExtras | null): bigint[] {
  if (extras === null) return [];
  const hashes = extras.media.map(({ id }) => mediaHash(id));
  if (extras.embeddings !== null) {
    hashes.push(mediaHash(Buffer.from(extras.embeddings).toString("latin1")));
  }
  return hashes;
}
