export { type BlockChain, blockChainOf, PromptDigests } from "./block-chain.ts";
export { encodeCbor } from "./cbor.ts";
export {
  blockKeyAt,
  blockKeys,
  type ChainKeyBytes,
  digestAt,
  digestsOfChainKeys,
  digestsOfPrompt,
  type PackedDigests,
} from "./digests.ts";
export {
  type BlockNames,
  type EngineName,
  type NamesRequest,
  namesOfPrompt,
} from "./engine-names.ts";
export type { HashInput } from "./hash-input.ts";
export type { Hashing } from "./hashing.ts";
export {
  BLOCK_TOKENS_MAX,
  MANIFEST_BYTES_MAX,
  MANIFEST_EXTRA_MAX,
  MANIFEST_TEXT_BYTES_MAX,
  manifestOf,
  manifestProblem,
  type NamespaceManifest,
} from "./manifest.ts";
export {
  type DecodedManifest,
  decodeManifest,
  encodeManifest,
  namespaceKey,
} from "./manifest-codec.ts";
export {
  isMacKeyId,
  MAC_FIELD,
  macKeyIdOf,
  type NamespaceSecret,
  namespaceSecret,
  SECRET_BYTES_MAX,
  SECRET_BYTES_MIN,
  withMacKey,
} from "./namespace-secret.ts";
export { encodePickle } from "./pickle.ts";
export {
  type SglangChain,
  type SglangPage,
  sglangEventSeed,
  sglangExternalHash,
  sglangPageHashes,
  sglangStorageSeed,
} from "./sglang-hashes.ts";
export {
  VLLM_DEFAULT_SEED,
  type VllmChain,
  type VllmExtraKey,
  type VllmHashAlgorithm,
  type VllmKeyFormat,
  vllmBlockHashes,
  vllmDigestBytes,
  vllmExternalHash,
  vllmKeyFormatOf,
  vllmNoneHash,
} from "./vllm-hashes.ts";
