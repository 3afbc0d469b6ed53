import { HearthError } from "../../core/index.ts";
import type { WireCommand } from "./control-client.ts";

/**
 * Name of a block: an engine's 64-bit hash (`number` up to 2^53, otherwise `bigint`, signed or
 * unsigned), or in hex a SHA-256 page key, a Hearth digest, or `digest/layer`.
 */
export type BlockRef = number | bigint | string;

/**
 * Members that every command may have; `docs/reference/commands.md` describes them as the envelope.
 */
export interface EnvelopeMembers {
  readonly id?: string;
  readonly issuer?: string;
  readonly epoch?: number | bigint;
  readonly seq?: number | bigint;
  /** Time in seconds since 1970, from which on workers refuse the command. */
  readonly not_after?: number;
}

export interface OwnedMembers extends EnvelopeMembers {
  /** Owner of the pins that the command sets or removes. Default: the issuer. */
  readonly owner?: string;
}

export type WarmTarget = "CPU_TIER1" | "GPU";

const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;

/**
 * Builds a command that loads blocks into RAM or onto the GPU. `sources`: workers that may have
 * them.
 */
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

/** Builds a command that removes all descendants of a block, but not the block itself. */
export function prune(after: BlockRef, envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "Prune", after_block_hash: named([after])[0], ...envelope };
}

/** Builds a command that pins blocks and their ancestors on the host, for at most `ttl_seconds`. */
export function pin(
  blocks: readonly BlockRef[],
  options: OwnedMembers & { readonly ttl_seconds?: number | bigint } = {},
): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), pin: true, ...options };
}

/** Builds a command that removes one owner's pin from blocks. */
export function unpin(blocks: readonly BlockRef[], options: OwnedMembers = {}): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), pin: false, ...options };
}

/**
 * Builds a command that soft-pins blocks with a `priority` from 0 to 99, which is halved for each
 * idle period.
 */
export function retain(
  blocks: readonly BlockRef[],
  priority: number,
  options: OwnedMembers & { readonly retain_seconds?: number | bigint } = {},
): WireCommand {
  return { type: "Cache", block_hashes: named(blocks), retain: priority, ...options };
}

/**
 * Builds a command that marks blocks as transient (never written to SSD) or removes transient
 * blocks.
 */
export function think(
  blocks: readonly BlockRef[],
  transient: boolean,
  envelope: EnvelopeMembers = {},
): WireCommand {
  return { type: "Think", block_hashes: named(blocks), transient, ...envelope };
}

/**
 * Builds a command that moves blocks to SSD under a lease. `ttlSeconds` null: the worker's maximum
 * duration.
 */
export function pause(
  blocks: readonly BlockRef[],
  leaseId: string,
  ttlSeconds: number | bigint | null = null,
  options: OwnedMembers = {},
): WireCommand {
  const own = { ttl_seconds: ttlSeconds, lease_id: leaseId };
  return { type: "Pause", block_hashes: named(blocks), ...own, ...options };
}

/** Builds a command that sets the remaining time of a lease. */
export function renewLease(
  leaseId: string,
  ttlSeconds: number | bigint,
  envelope: EnvelopeMembers = {},
): WireCommand {
  return { type: "RenewLease", lease_id: leaseId, new_ttl_seconds: ttlSeconds, ...envelope };
}

/**
 * Builds a command that ends a lease. Blocks without another pin, lease or slot reference are
 * purged.
 */
export function revokeLease(leaseId: string, envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "RevokeLease", lease_id: leaseId, ...envelope };
}

/**
 * Builds a command that removes every block without a pin, lease or slot reference from RAM and
 * SSD. Requires the role `purge`.
 */
export function flush(envelope: EnvelopeMembers = {}): WireCommand {
  return { type: "Flush", ...envelope };
}

/**
 * Returns a copy of the names. Throws USAGE for a number that is not a 64-bit hash, or that a
 * double may have rounded.
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
