/**
 * Everything that must match before bytes may be shared. Two engines share blocks exactly where
 * their manifests are equal in every field. Text is compared byte for byte and never empty: what
 * does not apply is `null`, so that "no salt" has one form only.
 */
export interface NamespaceManifest {
  /** The model as the engine was told it, `"Qwen/Qwen3-32B"`. */
  readonly model: string;
  /** Commit or digest of the weights. */
  readonly weightsRevision: string | null;
  /** Type of the cached values, `"bfloat16"`, `"fp8_e4m3"`. */
  readonly dtype: string;
  /** How weights or cache were quantised, where that changes the cached values. */
  readonly quantisation: string | null;
  /**
   * How the bytes of a block are arranged, engine included: `"vllm:NHD"`, `"sglang:page_first"`.
   */
  readonly layout: string;
  /** Tokens in a block. */
  readonly blockTokens: number;
  readonly tpSize: number;
  readonly tpRank: number;
  readonly ppSize: number;
  readonly ppRank: number;
  /** 32 bytes over the adapter's weights. */
  readonly loraDigest: Uint8Array | null;
  /** Separates tenants: nothing under one salt is visible under another, or under none. */
  readonly tenantSalt: string | null;
  /** Whatever else must match for this engine: context parallelism, cache group, attention kind. */
  readonly extra: Readonly<Record<string, string>>;
}

/**
 * The fields without which nothing can be shared; the rest has a value that says "does not apply".
 */
type Needed = "model" | "dtype" | "layout" | "blockTokens";

/** A manifest in which what is left out does not apply: null, the only shard, nothing extra. */
export function manifestOf(
  fields: Pick<NamespaceManifest, Needed> & Partial<Omit<NamespaceManifest, Needed>>,
): NamespaceManifest {
  return {
    weightsRevision: null,
    quantisation: null,
    tpSize: 1,
    tpRank: 0,
    ppSize: 1,
    ppRank: 0,
    loraDigest: null,
    tenantSalt: null,
    extra: {},
    ...fields,
  };
}

export const MANIFEST_BYTES_MAX = 65_536;
export const MANIFEST_TEXT_BYTES_MAX = 4096;
export const MANIFEST_EXTRA_MAX = 64;
export const BLOCK_TOKENS_MAX = 65_536;
const LORA_DIGEST_BYTES = 32;

const encoder = new TextEncoder();

function isU32(value: number): boolean {
  return Number.isInteger(value) && value >= 0 && value <= 0xffff_ffff;
}

/** What is wrong with one text, or null. */
function textProblem(name: string, text: string): string | null {
  if (!text.isWellFormed()) return `${name} is not well-formed Unicode`;
  if (text.length === 0) return `${name} is empty: leave it out instead`;
  const bytes = encoder.encode(text).length;
  if (bytes <= MANIFEST_TEXT_BYTES_MAX) return null;
  return `${name} has ${bytes} bytes, at most ${MANIFEST_TEXT_BYTES_MAX} are allowed`;
}

function rankProblem(kind: string, size: number, rank: number): string | null {
  if (!isU32(size) || size === 0) return `${kind}Size ${size} is not a whole number from 1`;
  if (!isU32(rank) || rank >= size) return `${kind}Rank ${rank} is not below ${kind}Size ${size}`;
  return null;
}

function extraProblem(extra: Readonly<Record<string, string>>): string | null {
  const entries = Object.entries(extra);
  if (entries.length > MANIFEST_EXTRA_MAX) {
    return `extra has ${entries.length} entries, at most ${MANIFEST_EXTRA_MAX} are allowed`;
  }
  for (const [name, value] of entries) {
    const problem = textProblem("a name in extra", name) ?? textProblem(`extra ${name}`, value);
    if (problem !== null) return problem;
  }
  return null;
}

/** Bytes of the encoding: header, thirteen field headers, five numbers, and what varies. */
function encodedBytes(manifest: NamespaceManifest, texts: readonly (string | null)[]): number {
  const names = Object.entries(manifest.extra).flat();
  const bytesOf = (text: string | null) => (text === null ? 0 : encoder.encode(text).length);
  const sum = [...texts, ...names].reduce((total, text) => total + bytesOf(text), 0);
  return 6 + 13 * 6 + 5 * 4 + (manifest.loraDigest?.length ?? 0) + 4 * names.length + sum;
}

/** The first thing wrong with a manifest, in words, or null. */
export function manifestProblem(manifest: NamespaceManifest): string | null {
  const texts = {
    model: manifest.model,
    weightsRevision: manifest.weightsRevision,
    dtype: manifest.dtype,
    quantisation: manifest.quantisation,
    layout: manifest.layout,
    tenantSalt: manifest.tenantSalt,
  };
  for (const [name, text] of Object.entries(texts)) {
    const problem = text === null ? null : textProblem(name, text);
    if (problem !== null) return problem;
  }
  const { blockTokens, loraDigest } = manifest;
  if (!isU32(blockTokens) || blockTokens === 0 || blockTokens > BLOCK_TOKENS_MAX) {
    return `blockTokens ${blockTokens} is not a whole number from 1 to ${BLOCK_TOKENS_MAX}`;
  }
  if (loraDigest !== null && loraDigest.length !== LORA_DIGEST_BYTES) {
    return `loraDigest has ${loraDigest.length} bytes instead of ${LORA_DIGEST_BYTES}`;
  }
  const problem =
    rankProblem("tp", manifest.tpSize, manifest.tpRank) ??
    rankProblem("pp", manifest.ppSize, manifest.ppRank) ??
    extraProblem(manifest.extra);
  if (problem !== null) return problem;
  const bytes = encodedBytes(manifest, Object.values(texts));
  if (bytes <= MANIFEST_BYTES_MAX) return null;
  return `the manifest has ${bytes} bytes, at most ${MANIFEST_BYTES_MAX} are allowed`;
}
