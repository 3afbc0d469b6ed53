import { assert, LAYER_ALL } from "../../core/index.ts";

/** What a file's name says of its block. */
export interface BlockName {
  /** The first 8 bytes of the block's key, as 16 hex digits. */
  readonly keyPrefix: string;
  readonly layer: number;
  /** 0 as a rule; 1, 2, ... for further keys with the same prefix and layer. */
  readonly variant: number;
}

/** The index has one byte for it. */
export const VARIANT_MAX = 255;

const NAME = /^([0-9a-f]{16})-(all|0|[1-9][0-9]{0,9})(?:\.([1-9][0-9]{0,2}))?\.kvb$/;
const PREFIX_BYTES = 8;

/** Path of a block's file below the SSD folder: `3f/3f9a…-all.kvb`; at most 38 characters. */
export function blockPath(key: Uint8Array, layer: number, variant: number): string {
  assert(variant >= 0 && variant <= VARIANT_MAX, "a variant is a byte");
  const prefix = key.subarray(0, PREFIX_BYTES).toHex();
  const suffix = variant === 0 ? "" : `.${variant}`;
  return `${shardOf(prefix)}/${prefix}-${layer === LAYER_ALL ? "all" : layer}${suffix}.kvb`;
}

/** Name of the folder that holds the files of keys with this prefix. */
export function shardOf(keyPrefix: string): string {
  return keyPrefix.slice(0, 2);
}

/** Reads a name without its folder; null where no block has that name. */
export function parseBlockName(name: string): BlockName | null {
  const match = NAME.exec(name);
  if (match === null) return null;
  const layer = match[2] === "all" ? LAYER_ALL : Number(match[2]);
  // 4294967295 is spelled `all`: each name has one spelling.
  if (layer > LAYER_ALL || (layer === LAYER_ALL && match[2] !== "all")) return null;
  const variant = match[3] === undefined ? 0 : Number(match[3]);
  if (variant > VARIANT_MAX) return null;
  return { keyPrefix: match[1]!, layer, variant };
}
