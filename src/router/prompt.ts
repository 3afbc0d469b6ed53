import { LAYER_ALL } from "../core/index.ts";
import { blockKeys, PromptDigests } from "../identity/index.ts";
import { blocksOfTokens, keyHashes, type Native, sequenceHashes } from "../native/index.ts";
import type { KeySpace } from "../observability/activity/index.ts";
import type { RouteRequest } from "./route.ts";

/** Hashes of a prompt's full blocks in one key space, and that key space's block size. */
interface Lookup {
  readonly hashes: BigUint64Array;
  readonly blockTokens: number;
}

/** A request and the hashes of its prompt. They are computed once, even if the request waits. */
export interface Prompt {
  readonly request: RouteRequest;
  readonly tokens: number;
  /** Hashes for load and prediction. They do not depend on the key spaces of workers. */
  readonly own: Lookup;
  readonly lookups: readonly Lookup[];
}

/** Maximum key spaces in which one prompt is looked up. */
const SPACES_MAX = 4;

/**
 * Computes a prompt's hashes. `spaces`: key spaces of the model's workers. `blockTokens`: block
 * size from the router's settings.
 */
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
    const tokens = prompt.tokens ?? hashes.length * ofHash;
    return { request, tokens, own, lookups: [own] };
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
      // Skip LoRA requests: chain keys depend on the adapter's path, which the router does not
      // know.
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
  return { request, tokens: tokens.length, own, lookups };
}

/**
 * Returns whether a request's blocks can be in this namespace. Requests with a cache salt never
 * match, because the namespace key does not reveal its salt.
 */
function isInNamespace(
  space: KeySpace,
  loraName: string | undefined,
  cacheSalt: string | undefined,
): boolean {
  return !cacheSalt && (!loraName || space.model === loraName);
}

/**
 * Returns at most four distinct key spaces in a fixed order, engine key spaces first. If workers
 * reported none, returns the engine key space.
 */
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

const KEY_BYTES = 32;

const SEED = 1_337n;

/**
 * Returns the seed for the hash of a single block, as in Dynamo. It depends on the LoRA name and
 * the cache salt, so equal text with different ones has different hashes.
 */
export function tokenSalt(loraName: string | undefined, cacheSalt: string | undefined): bigint {
  const lora = loraName ? Bun.hash.xxHash3(loraName, 0n) : 0n;
  const salt = cacheSalt ? Bun.hash.xxHash3(cacheSalt, 1n) : 0n;
  return BigInt.asUintN(64, SEED + lora + salt);
}

/**
 * Computes the sequence hashes of a prompt's full blocks, in the engine's or the agent's key space.
 * The caller owns the returned arrays.
 */
export class PromptHasher {
  readonly #native: Native;
  #local = new BigUint64Array(1_024);

  constructor(native: Native) {
    this.#native = native;
  }

  tokens(tokens: Uint32Array, blockTokens: number, salt: bigint): BigUint64Array {
    const hashing = { blockTokens, seed: salt };
    const sequence = new BigUint64Array(blocksOfTokens(tokens.length, hashing));
    if (this.#local.length < sequence.length) this.#local = new BigUint64Array(sequence.length * 2);
    sequenceHashes(this.#native, tokens, hashing, { local: this.#local, sequence });
    return sequence;
  }

  blocks(tokens: Uint32Array, blockTokens: number, namespaceKey: Uint8Array): BigUint64Array {
    const hashes = new BigUint64Array(Math.floor(tokens.length / blockTokens));
    keyHashes(this.#native, namespaceKey, tokens, blockTokens, hashes);
    return hashes;
  }

  /**
   * Returns a function that computes the hashes for a namespace whose blocks have chain keys. It
   * returns null if the chain format is unknown. The prompt's digests are shared by all namespaces.
   */
  chained(tokens: Uint32Array, blockTokens: number, cacheSalt: string | undefined) {
    const prompt = new PromptDigests(this.#native, { tokens, blockTokens, cacheSalt });
    return (namespaceKey: Uint8Array, chain: string): BigUint64Array | null => {
      const digests = prompt.in(namespaceKey, chain);
      return digests === null ? null : firstWords(blockKeys(this.#native, digests, LAYER_ALL));
    };
  }
}

/** Returns the first eight bytes of each key as a little-endian integer. */
function firstWords(keys: Uint8Array): BigUint64Array {
  const view = new DataView(keys.buffer, keys.byteOffset, keys.byteLength);
  return BigUint64Array.from({ length: keys.length / KEY_BYTES }, (_, i) =>
    view.getBigUint64(i * KEY_BYTES, true),
  );
}
