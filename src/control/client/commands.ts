import { HearthError } from "../../core/index.ts";
import type { WireCommand } from "./control-client.ts";

/**
 * Name of a block: an engine's 64-bit hash (a `number` up to 2^53, otherwise a `bigint`, signed or
 * unsigned), a SHA-256 page key or a Hearth digest in hex, or `digest/layer`.
 */
export type BlockRef = number | bigint | string;

/** Members that every command may have. See the envelope in `docs/reference/commands.md`. */
export interface EnvelopeMembers {
  readonly id?: string;
  readonly issuer?: string;
  readonly epoch?: number | bigint;
  readonly seq?: number | bigint;
  /** Seconds since 1970. Afterwards the command is refused. */
  readonly not_after?: number;
}

export interface OwnedMembers extends EnvelopeMembers {
  /** Owner of the pins. Default: the issuer. */
  readonly owner?: string;
}

export type WarmTarget = "CPU_TIER1" | "GPU";

const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;

/** Brings blocks into RAM or onto the GPU. `sources`: workers that may have them. */
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

/** Removes all descendants of a block; the block itself stays. */
export function prune(after: BlockRef, envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "Prune", after_block_hash: named([after])[0], ...envelope };
}

/** Pins blocks and their ancestors on the host, for at most `ttl_seconds`. */
export function pin(
  blocks: readonly BlockRef[],
  options: OwnedMembers & { readonly ttl_seconds?: number | bigint } = {},
): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), pin: true, ...options };
}

/** Removes one owner's pin from blocks. */
export function unpin(blocks: readonly BlockRef[], options: OwnedMembers = {}): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), pin: false, ...options };
}

/** Soft-pins blocks: `priority` from 0 to 99, halved after each idle period. */
export function retain(
  blocks: readonly BlockRef[],
  priority: number,
  options: OwnedMembers & { readonly retain_seconds?: number | bigint } = {},
): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), retain: priority, ...options };
}

/** Marks blocks as transient (never written to SSD), or purges transient blocks. */
export function think(
  blocks: readonly BlockRef[],
  transient: boolean,
  envelope: EnvelopeMembers = {},
): WireCommand {
  return { type: "Think", block_hashes: named(blocks), transient, ...envelope };
}

/** Moves blocks to SSD under a lease. `ttlSeconds` null: the worker's maximum. */
export function pause(
  blocks: readonly BlockRef[],
  leaseId: string,
  ttlSeconds: number | bigint | null = null,
  options: OwnedMembers = {},
): WireCommand {
  const own = { ttl_seconds: ttlSeconds, lease_id: leaseId };
  return { type: "Pause", block_hashes: named(blocks), ...own, ...options };
}

/** Sets the remaining time of a lease. */
export function renewLease(
  leaseId: string,
  ttlSeconds: number | bigint,
  envelope: EnvelopeMembers = {},
): WireCommand {
  return { type: "RenewLease", lease_id: leaseId, new_ttl_seconds: ttlSeconds, ...envelope };
}

/** Ends a lease. Blocks without another pin, lease or slot reference are purged. */
export function revokeLease(leaseId: string, envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "RevokeLease", lease_id: leaseId, ...envelope };
}

/**
 * Removes every block without a pin, lease or slot reference from RAM and SSD. Requires the role
 * `purge`.
 */
export function flush(envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "Flush", ...envelope };
}

/**
 * Returns a copy. Throws USAGE for a number that is not a 64-bit hash, or that a double has
 * rounded.
 */
function named(blocks: readonly BlockRef[]): BlockRef[] {
  for (const block of blocks) {
    const isName =
      typeof block === "string" ||
      (typeof block === "bigint"
        ? block >= I64_MIN && block <= U64_MAX
        : Number.isSafeInteger(block));
    if (isName) continue;
    throw new HearthError("USAGE", `${block} is not a valid 64-bit block hash`, {
      fix: "give hashes above 2^53 as a bigint",
    });
  }
  return [...blocks];
}
