import { assert, LAYER_ALL } from "../../core/index.ts";

/** What lies in an SSD folder beside the block files. */
export const OWNER_FILE = "owner.json";
export const LOCK_FILE = "lock";
export const QUARANTINE_FOLDER = "quarantine";
/** Where the index is unless the configuration says otherwise. */
export const INDEX_FOLDER = "index";

/** Names of the folders that hold the block files: `00` to `ff`. */
export const SHARDS: readonly string[] = Array.from({ length: 256 }, (_, shard) =>
  shard.toString(16).padStart(2, "0"),
);

const SHARD = /^[0-9a-f]{2}$/;
const LEFTOVER = /^(?:\.[\w.-]+\.tmp|probe-[0-9a-z]+\.kvb)$/;

export function isShard(name: string): boolean {
  return SHARD.test(name);
}

/** A file that was being written, or tried out, when its writer died. */
export function isLeftover(name: string): boolean {
  return LEFTOVER.test(name);
}

/** Where a file that is not what it should be is moved to, below the SSD folder. */
export function quarantinePath(path: string, wallMs: number): string {
  const name = path.slice(path.lastIndexOf("/") + 1);
  return `${QUARANTINE_FOLDER}/${name}.${Math.floor(wallMs).toString(36)}`;
}

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
