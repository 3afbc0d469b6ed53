import { assert, LAYER_ALL } from "../../core/index.ts";

/** Names in an SSD folder besides the folders with block files. */
export const OWNER_FILE = "owner.json";
export const LOCK_FILE = "lock";
export const QUARANTINE_FOLDER = "quarantine";
/** Name of the default folder of the block index. */
export const INDEX_FOLDER = "index";

/** Names of the shard folders, which contain the block files: `00` to `ff`. */
export const SHARDS: readonly string[] = Array.from({ length: 256 }, (_, shard) =>
  shard.toString(16).padStart(2, "0"),
);

const SHARD = /^[0-9a-f]{2}$/;
const LEFTOVER = /^(?:\.[\w.-]+\.tmp|probe-[0-9a-z]+\.kvb)$/;

export function isShard(name: string): boolean {
  return SHARD.test(name);
}

/**
 * Returns whether this is the name of a temporary file of a write or probe, which a crash left
 * behind.
 */
export function isLeftover(name: string): boolean {
  return LEFTOVER.test(name);
}

/** Returns the path, relative to the SSD folder, to which a damaged file is moved. */
export function quarantinePath(path: string, wallMs: number): string {
  const name = path.slice(path.lastIndexOf("/") + 1);
  return `${QUARANTINE_FOLDER}/${name}.${Math.floor(wallMs).toString(36)}`;
}

/** The parts of a block file's name. */
export interface BlockName {
  /** The first 8 bytes of the block's key, as 16 hex digits. */
  readonly keyPrefix: string;
  readonly layer: number;
  /** Usually 0; 1, 2, ... for further keys with the same prefix and layer. */
  readonly variant: number;
}

/** Maximum variant: the index stores it in one byte. */
export const VARIANT_MAX = 255;

const NAME = /^([0-9a-f]{16})-(all|0|[1-9][0-9]{0,9})(?:\.([1-9][0-9]{0,2}))?\.kvb$/;
const PREFIX_BYTES = 8;

/**
 * Returns the path of a block's file relative to the SSD folder: `3f/3f9a…-all.kvb`. At most 38
 * characters.
 */
export function blockPath(key: Uint8Array, layer: number, variant: number): string {
  assert(variant >= 0 && variant <= VARIANT_MAX, "a variant is a byte");
  const prefix = key.subarray(0, PREFIX_BYTES).toHex();
  const suffix = variant === 0 ? "" : `.${variant}`;
  return `${shardOf(prefix)}/${prefix}-${layer === LAYER_ALL ? "all" : layer}${suffix}.kvb`;
}

/** Returns the name of the shard folder for keys with this prefix. */
export function shardOf(keyPrefix: string): string {
  return keyPrefix.slice(0, 2);
}

/** Parses a file name without its folder. Returns null if it is not the name of a block file. */
export function parseBlockName(name: string): BlockName | null {
  const match = NAME.exec(name);
  if (match === null) return null;
  const layer = match[2] === "all" ? LAYER_ALL : Number(match[2]);
  // Reject 4294967295 as a number, since it is written as `all`: each name has a single spelling.
  if (layer > LAYER_ALL || (layer === LAYER_ALL && match[2] !== "all")) return null;
  const variant = match[3] === undefined ? 0 : Number(match[3]);
  if (variant > VARIANT_MAX) return null;
  return { keyPrefix: match[1], layer, variant };
}
