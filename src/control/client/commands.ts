import { HearthError } from "../../core/index.ts";
import type { WireCommand } from "./control-client.ts";

/**
 * What names a block: an engine's 64-bit hash (a `number` as far as it is exact, else a `bigint`,
 * signed or unsigned), a SHA-256 page key or one of our digests in hex, or `digest/layer`.
 */
export type BlockRef = number | bigint | string;

/** Members that may stand beside those of any command. See the envelope in `docs/commands.md`. */
export interface EnvelopeMembers {
  readonly id?: string;
  readonly issuer?: string;
  readonly epoch?: number | bigint;
  readonly seq?: number | bigint;
  /** Seconds since 1970; afterwards it is refused. */
  readonly not_after?: number;
}

export interface OwnedMembers extends EnvelopeMembers {
  /** Whose pins; the issuer unless given. */
  readonly owner?: string;
}

export type WarmTarget = "CPU_TIER1" | "GPU";

const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;

/** Brings blocks up to RAM, or to the GPU. `sources`: workers that may have them. */
export function warm(
  keys: readonly BlockRef[],
  options: EnvelopeMembers & {
    readonly target?: WarmTarget;
    readonly sources?: readonly string[];
  } = {},
): WireCommand {
  const { target = "CPU_TIER1", ...beside } = options;
  return { type: "Warm", block_keys: named(keys), target_tier: target, ...beside };
}

/** Drops all that builds upon a block; the block itself stays. */
export function prune(after: BlockRef, envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "Prune", after_block_hash: named([after])[0], ...envelope };
}

/** Keeps blocks and what they build upon on the host; `ttl_seconds` at most. */
export function pin(
  blocks: readonly BlockRef[],
  options: OwnedMembers & { readonly ttl_seconds?: number | bigint } = {},
): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), pin: true, ...options };
}

/** Takes one owner's pin from blocks. */
export function unpin(blocks: readonly BlockRef[], options: OwnedMembers = {}): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), pin: false, ...options };
}

/** Prefers blocks, without a promise: `priority` 0-99, halved after each idle period. */
export function retain(
  blocks: readonly BlockRef[],
  priority: number,
  options: OwnedMembers & { readonly retain_seconds?: number | bigint } = {},
): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), retain: priority, ...options };
}

/** Marks blocks as transient (never written to SSD), or purges those that are. */
export function think(
  blocks: readonly BlockRef[],
  transient: boolean,
  envelope: EnvelopeMembers = {},
): WireCommand {
  return { type: "Think", block_hashes: named(blocks), transient, ...envelope };
}

/** Moves blocks to SSD under a lease; `ttlSeconds` null: as long as the worker grants. */
export function pause(
  blocks: readonly BlockRef[],
  leaseId: string,
  ttlSeconds: number | bigint | null = null,
  options: OwnedMembers = {},
): WireCommand {
  const own = { ttl_seconds: ttlSeconds, lease_id: leaseId };
  return { type: "Pause", block_hashes: named(blocks), ...own, ...options };
}

/** Lets a lease run for so long from now. */
export function renewLease(
  leaseId: string,
  ttlSeconds: number | bigint,
  envelope: EnvelopeMembers = {},
): WireCommand {
  return { type: "RenewLease", lease_id: leaseId, new_ttl_seconds: ttlSeconds, ...envelope };
}

/** Ends a lease; blocks that nothing else holds are purged. */
export function revokeLease(leaseId: string, envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "RevokeLease", lease_id: leaseId, ...envelope };
}

/** Empties RAM and SSD of all that nothing holds. Wants the role `purge`. */
export function flush(envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "Flush", ...envelope };
}

/** Copies them; throws USAGE for a number that names no block, or that a double has rounded. */
function named(blocks: readonly BlockRef[]): BlockRef[] {
  for (const block of blocks) {
    const isName =
      typeof block === "string" ||
      (typeof block === "bigint"
        ? block >= I64_MIN && block <= U64_MAX
        : Number.isSafeInteger(block));
    if (isName) continue;
    throw new HearthError("USAGE", `${block} is no 64-bit block hash`, {
      fix: "give hashes beyond 2^53 as a bigint",
    });
  }
  return [...blocks];
}
