import { LAYER_ALL } from "../../core/index.ts";
import { blockKeys, PromptDigests } from "../../identity/index.ts";
import { blocksOfTokens, keyHashes, type Native, sequenceHashes } from "../../native/index.ts";
import type { KeySpace } from "../../observability/activity/index.ts";
import type { RouteRequest } from "../route.ts";

/** A prompt under the names that it goes by in one key space. */
interface Lookup {
  readonly hashes: BigUint64Array;
  readonly blockTokens: number;
}

/** All that is computed from a prompt, once, however long it waits. */
export interface Prompt {
  readonly tokens: number;
  /** What load and prediction know it by: the same whatever its workers' key spaces are. */
  readonly own: Lookup;
  readonly lookups: readonly Lookup[];
}

/** More are not looked up. */
const SPACES_MAX = 4;

/** `spaces`: those of the model's workers; `blockTokens`: of the settings. */
export function promptOf(
  hasher: PromptHasher,
  request: RouteRequest,
  spaces: readonly KeySpace[],
  blockTokens: number,
): Prompt {
  const { prompt, loraName, cacheSalt } = request;
  if (prompt.kind === "hashes") {
    const { hashes, blockTokens: ofHash = blockTokens } = prompt;
    const own = { hashes: hashes.slice(), blockTokens: ofHash };
    return { tokens: prompt.tokens ?? hashes.length * ofHash, own, lookups: [own] };
  }
  const { tokens } = prompt;
  const salt = tokenSalt(loraName, cacheSalt);
  const own = { hashes: hasher.tokens(tokens, blockTokens, salt), blockTokens };
  const lookups: Lookup[] = [];
  const chained = new Map<number, ReturnType<PromptHasher["chained"]>>();
  for (const space of spaces) {
    if (space.kind === "tokens") {
      const isOwn = space.blockTokens === blockTokens;
      const hashes = isOwn ? own.hashes : hasher.tokens(tokens, space.blockTokens, salt);
      lookups.push(isOwn ? own : { hashes, blockTokens: space.blockTokens });
    } else if (space.chain !== undefined) {
      // The path of an adapter is a part of its chain keys, and not known here.
      if (loraName) continue;
      const known = chained.get(space.blockTokens);
      const hash = known ?? hasher.chained(tokens, space.blockTokens, cacheSalt);
      if (known === undefined) chained.set(space.blockTokens, hash);
      const hashes = hash(space.namespaceKey, space.chain);
      if (hashes !== null) lookups.push({ hashes, blockTokens: space.blockTokens });
    } else if (isInNamespace(space, loraName, cacheSalt)) {
      const hashes = hasher.blocks(tokens, space.blockTokens, space.namespaceKey);
      lookups.push({ hashes, blockTokens: space.blockTokens });
    }
  }
  return { tokens: tokens.length, own, lookups };
}

/** A namespace is of one model or LoRA and of one salt; which salt, its key does not tell. */
function isInNamespace(
  space: KeySpace,
  loraName: string | undefined,
  cacheSalt: string | undefined,
): boolean {
  return !cacheSalt && (!loraName || space.model === loraName);
}

/** Different ones, in a fixed order: engines' own first; where there is none, theirs is assumed. */
export function distinctSpaces(
  all: Iterable<KeySpace>,
  model: string,
  blockTokens: number,
): readonly KeySpace[] {
  const byName = new Map<string, KeySpace>();
  for (const space of all) byName.set(nameOf(space), space);
  if (byName.size === 0) return [{ kind: "tokens", model, blockTokens }];
  const names = [...byName.keys()].sort().slice(0, SPACES_MAX);
  return names.map((name) => byName.get(name)!);
}

function nameOf(space: KeySpace): string {
  if (space.kind === "tokens") return `0 ${space.blockTokens}`;
  return `1 ${space.blockTokens} ${space.model} ${space.namespaceKey.toHex()}`;
}

/** Sequence hashes of a prompt's full blocks, in either key space; the arrays are the caller's. */
export interface PromptHasher {
  tokens(tokens: Uint32Array, blockTokens: number, salt: bigint): BigUint64Array;
  blocks(tokens: Uint32Array, blockTokens: number, namespaceKey: Uint8Array): BigUint64Array;
  /**
   * Of namespaces whose blocks are named by chain keys: for each namespace its hashes, or null if
   * the chain is not known. Chain keys are computed once for all of them.
   */
  chained(
    tokens: Uint32Array,
    blockTokens: number,
    cacheSalt: string | undefined,
  ): (namespaceKey: Uint8Array, chain: string) => BigUint64Array | null;
}

const KEY_BYTES = 32;

const SEED = 1_337n;

/** Seed of a block's own hash, as Dynamo has it: LoRA and salt make other prefixes of one text. */
export function tokenSalt(loraName: string | undefined, cacheSalt: string | undefined): bigint {
  const lora = loraName ? Bun.hash.xxHash3(loraName, 0n) : 0n;
  const salt = cacheSalt ? Bun.hash.xxHash3(cacheSalt, 1n) : 0n;
  return BigInt.asUintN(64, SEED + lora + salt);
}

export function createPromptHasher(native: Native): PromptHasher {
  let local = new BigUint64Array(1_024);
  return {
    tokens(tokens, blockTokens, salt) {
      const hashing = { blockTokens, seed: salt };
      const sequence = new BigUint64Array(blocksOfTokens(tokens.length, hashing));
      if (local.length < sequence.length) local = new BigUint64Array(sequence.length * 2);
      sequenceHashes(native, tokens, hashing, { local, sequence });
      return sequence;
    },
    blocks(tokens, blockTokens, namespaceKey) {
      const hashes = new BigUint64Array(Math.floor(tokens.length / blockTokens));
      keyHashes(native, namespaceKey, tokens, blockTokens, hashes);
      return hashes;
    },
    chained(tokens, blockTokens, cacheSalt) {
      const prompt = new PromptDigests(native, { tokens, blockTokens, cacheSalt });
      return (namespaceKey, chain) => {
        const digests = prompt.in(namespaceKey, chain);
        return digests === null ? null : firstWords(blockKeys(native, digests, LAYER_ALL));
      };
    },
  };
}

/** The first eight bytes of each key, little endian. */
function firstWords(keys: Uint8Array): BigUint64Array {
  const view = new DataView(keys.buffer, keys.byteOffset, keys.byteLength);
  return BigUint64Array.from({ length: keys.length / KEY_BYTES }, (_, i) =>
    view.getBigUint64(i * KEY_BYTES, true),
  );
}
