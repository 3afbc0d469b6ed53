import fc from "fast-check";
import type { WorkerId } from "../../src/core/index.ts";
import type { ResidencyRun } from "../../src/events/index.ts";
import {
  type KeySpace,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyHeartbeat,
  type ResidencySource,
} from "../../src/observability/activity/index.ts";

export const u64 = fc.bigInt({ min: 0n, max: (1n << 64n) - 1n });
const sequence = fc.integer({ min: 1, max: 2 ** 40 });
const tier = fc.constantFrom(...RESIDENCY_TIERS);
const parent = fc.option(u64);

export const hashes = fc
  .array(u64, { minLength: 0, maxLength: 20 })
  .map((list) => BigUint64Array.from(list));

export const source: fc.Arbitrary<ResidencySource> = fc.record({
  worker: fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/).map((name) => name as WorkerId),
  rank: fc.integer({ min: 0, max: 65_535 }),
  incarnation: fc.bigInt({ min: 1n, max: (1n << 64n) - 1n }),
});

const stored: fc.Arbitrary<ResidencyChange> = fc
  .record({ tier, parent, hashes, hasTokens: fc.boolean() })
  .map(({ hasTokens, ...rest }) => ({
    kind: "stored" as const,
    ...rest,
    tokenHashes: hasTokens || rest.hashes.length === 0 ? rest.hashes.map((it) => ~it) : null,
  }));

export const change: fc.Arbitrary<ResidencyChange> = fc.oneof(
  stored,
  fc.record({ kind: fc.constant("removed" as const), tier, hashes }),
  fc.record({ kind: fc.constant("cleared" as const), tier: fc.option(tier) }),
);

export const batch: fc.Arbitrary<ResidencyBatch> = fc.record({
  source,
  firstSequence: sequence,
  changes: fc.array(change, { minLength: 1, maxLength: 12 }),
});

const text = fc.string({ unit: "grapheme", maxLength: 40 });
const space: fc.Arbitrary<KeySpace> = fc.oneof(
  fc.record({
    kind: fc.constant("tokens" as const),
    model: text,
    blockTokens: fc.integer({ min: 1, max: 4_096 }),
  }),
  fc.record({
    kind: fc.constant("blocks" as const),
    model: text,
    blockTokens: fc.integer({ min: 1, max: 4_096 }),
    namespaceKey: fc.uint8Array({ minLength: 32, maxLength: 32 }),
  }),
  fc.record({
    kind: fc.constant("blocks" as const),
    model: text,
    blockTokens: fc.integer({ min: 1, max: 4_096 }),
    namespaceKey: fc.uint8Array({ minLength: 32, maxLength: 32 }),
    chain: text,
  }),
);

const digest = fc.record({ blocks: fc.integer({ min: 0, max: 2 ** 40 }), mix: u64 });

export const heartbeat: fc.Arbitrary<ResidencyHeartbeat> = fc.record({
  source,
  lastSequence: fc.integer({ min: 0, max: 2 ** 40 }),
  mode: fc.constantFrom("ring" as const, "stream" as const),
  everyMs: fc.integer({ min: 50, max: 300_000 }),
  spaces: fc.array(space, { maxLength: 4 }),
  digests: fc.tuple(digest, digest, digest),
  isDeviceKnown: fc.boolean(),
  isClosing: fc.boolean(),
});

export const run: fc.Arbitrary<ResidencyRun> = fc.record({ tier, parent, hashes });
