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
