import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { WorkerId } from "../../src/core/index.ts";
import {
  ANY,
  blocksIn,
  decodeAnswer,
  decodeQuery,
  decodeResidencyMessage,
  decodeStoredSnapshot,
  encodeAnswer,
  encodeBatch,
  encodeHeartbeat,
  encodeQuery,
  encodeStoredSnapshot,
  eventsSubject,
  fitRange,
  queriesSubject,
  type ResidencyAnswer,
  type ResidencyQuery,
  type ResidencyRun,
  type ResidencySnapshotPart,
  snapshotParts,
  splitBatch,
  splitChange,
} from "../../src/events/index.ts";
import {
  type KeySpace,
  RESIDENCY_TIERS,
  type ResidencyBatch,
  type ResidencyChange,
  type ResidencyHeartbeat,
  type ResidencySource,
} from "../../src/observability/activity/index.ts";

const u64 = fc.bigInt({ min: 0n, max: (1n << 64n) - 1n });
const sequence = fc.integer({ min: 1, max: 2 ** 40 });
const tier = fc.constantFrom(...RESIDENCY_TIERS);
const parent = fc.option(u64);

const hashes = fc
  .array(u64, { minLength: 0, maxLength: 20 })
  .map((list) => BigUint64Array.from(list));

const source: fc.Arbitrary<ResidencySource> = fc.record({
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

const change: fc.Arbitrary<ResidencyChange> = fc.oneof(
  stored,
  fc.record({ kind: fc.constant("removed" as const), tier, hashes }),
  fc.record({ kind: fc.constant("cleared" as const), tier: fc.option(tier) }),
);

const batch: fc.Arbitrary<ResidencyBatch> = fc.record({
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

const heartbeat: fc.Arbitrary<ResidencyHeartbeat> = fc.record({
  source,
  lastSequence: fc.integer({ min: 0, max: 2 ** 40 }),
  mode: fc.constantFrom("ring" as const, "stream" as const),
  everyMs: fc.integer({ min: 50, max: 300_000 }),
  spaces: fc.array(space, { maxLength: 4 }),
  digests: fc.tuple(digest, digest, digest),
  isDeviceKnown: fc.boolean(),
  isClosing: fc.boolean(),
});

const run: fc.Arbitrary<ResidencyRun> = fc.record({ tier, parent, hashes });

const WALL_MS = 1_700_000_000_123;
const SOURCE = { worker: "w-1" as WorkerId, rank: 3, incarnation: 77n };

function bigRun(blocks: number): BigUint64Array {
  return BigUint64Array.from({ length: blocks }, (_, i) => (BigInt(i) << 32n) | 0xffff_ffffn);
}

describe("messages of a publisher", () => {
  test("a batch survives a round trip", () => {
    const property = fc.property(batch, (sent) => {
      const read = decodeResidencyMessage(encodeBatch(sent, WALL_MS));
      expect(read).toEqual({
        ok: true,
        value: { kind: "batch", publishedAtMs: WALL_MS, batch: sent },
      });
    });
    fc.assert(property, { numRuns: 300 });
  });

  test("a heartbeat survives a round trip", () => {
    const property = fc.property(heartbeat, (sent) => {
      const read = decodeResidencyMessage(encodeHeartbeat(sent, WALL_MS));
      expect(read).toEqual({
        ok: true,
        value: { kind: "heartbeat", publishedAtMs: WALL_MS, heartbeat: sent },
      });
    });
    fc.assert(property, { numRuns: 300 });
  });

  test("each truncation and each changed byte is decoded or refused with a reason", () => {
    const cleared: ResidencyChange = { kind: "cleared", tier: "host" };
    const hashes = bigRun(2);
    const stored: ResidencyChange = {
      kind: "stored",
      tier: "disk",
      parent: 5n,
      hashes,
      tokenHashes: hashes,
    };
    const sent = { source: SOURCE, firstSequence: 9, changes: [cleared, stored] };
    const bytes = encodeBatch(sent, WALL_MS);
    for (let end = 0; end < bytes.length; end++) {
      expect(decodeResidencyMessage(bytes.subarray(0, end)).ok).toBe(false);
    }
    for (let at = 0; at < bytes.length; at++) {
      for (const flip of [1, 0x80, 0xff]) {
        const damaged = bytes.slice();
        damaged[at]! ^= flip;
        const read = decodeResidencyMessage(damaged);
        if (!read.ok) expect(read.why).not.toBe("");
      }
    }
  });

  test("non-consecutive numbers and other ranks are refused", () => {
    const of = (rank: number, firstSequence: number) =>
      encodeBatch(
        { source: { ...SOURCE, rank }, firstSequence, changes: [{ kind: "cleared", tier: null }] },
        WALL_MS,
      );
    const bytes = of(3, 9);
    const name = Buffer.from("event_id");
    const at = Buffer.from(bytes).indexOf(name) + name.length;
    expect(bytes[at]).toBe(9);
    bytes[at] = 10;
    expect(decodeResidencyMessage(bytes)).toMatchObject({ ok: false });
    expect(decodeResidencyMessage(of(3, 9)).ok).toBe(true);
  });
});

describe("subjects", () => {
  test("name cluster, worker and rank as one token each", () => {
    expect(eventsSubject("a.b", SOURCE)).toBe("kv-events-a_b.w-1.3");
    expect(eventsSubject("prod", ANY)).toBe("kv-events-prod.*.*");
    expect(queriesSubject("prod", SOURCE)).toBe("kv-events-ask-prod.w-1.3");
  });
});

const question: fc.Arbitrary<ResidencyQuery> = fc.oneof(
  fc.record({
    kind: fc.constant("range" as const),
    incarnation: fc.option(fc.bigInt({ min: 1n, max: 2n ** 64n - 1n })),
    from: fc.nat(),
    to: fc.option(fc.nat()),
  }),
  fc.record({
    kind: fc.constant("snapshot" as const),
    incarnation: fc.option(fc.bigInt({ min: 1n, max: 2n ** 64n - 1n })),
    snapshot: fc.option(u64),
    part: fc.nat(),
  }),
);

const answer: fc.Arbitrary<ResidencyAnswer> = fc.oneof(
  fc.record({ kind: fc.constant("range" as const), batch, lastSequence: fc.nat() }),
  fc.record({
    kind: fc.constant("evicted" as const),
    source,
    firstSequence: fc.nat(),
    lastSequence: fc.nat(),
  }),
  fc.record({ kind: fc.constant("too_new" as const), source, lastSequence: fc.nat() }),
  fc.record({
    kind: fc.constant("snapshot" as const),
    source,
    snapshot: u64,
    sequence: fc.nat(),
    part: fc.nat(),
    isLast: fc.boolean(),
    isDeviceKnown: fc.boolean(),
    runs: fc.array(run, { maxLength: 5 }),
  }),
  fc.record({ kind: fc.constantFrom("no_snapshot", "other_incarnation"), source }),
  fc.record({ kind: fc.constant("busy" as const), source, retryMs: fc.nat({ max: 60_000 }) }),
  fc.record({ kind: fc.constant("refused" as const), why: fc.string({ maxLength: 90 }) }),
);

describe("queries and answers", () => {
  test("survive a round trip", () => {
    const asked = fc.property(question, (sent) => {
      expect(decodeQuery(encodeQuery(sent))).toEqual({ ok: true, value: sent });
    });
    fc.assert(asked, { numRuns: 300 });
    const answered = fc.property(answer, (sent) => {
      expect(decodeAnswer(encodeAnswer(sent))).toEqual({ ok: true, value: sent });
    });
    fc.assert(answered, { numRuns: 300 });
  });

  test("false lengths allocate no memory", () => {
    const lies = ["ddffffffff", "dfffffffff", "c6ffffffff", "81a4", "82a46b696e64a572616e6765"];
    for (const hex of lies) {
      const bytes = Uint8Array.fromHex(hex);
      expect([decodeAnswer(bytes).ok, decodeQuery(bytes).ok]).toEqual([false, false]);
      expect(decodeResidencyMessage(bytes).ok).toBe(false);
    }
  });
});

/** The state of each named block after a change. */
function blocksOf(changes: readonly ResidencyChange[]): string[] {
  return changes.flatMap((one) =>
    one.kind === "cleared"
      ? []
      : Array.from(one.hashes, (hash) => `${one.kind} ${one.tier} ${hash}`),
  );
}

describe("oversized content", () => {
  test("is split into equivalent changes, each a child of the previous one", () => {
    const property = fc.property(change, fc.integer({ min: 1, max: 7 }), (whole, max) => {
      const parts = splitChange(whole, max);
      expect(blocksOf(parts)).toEqual(blocksOf([whole]));
      expect(parts.every((part) => blocksIn(part) <= max)).toBe(true);
      let last: bigint | null | undefined;
      for (const part of parts) {
        if (part.kind !== "stored" || whole.kind !== "stored") continue;
        expect(part.parent).toBe(last === undefined ? whole.parent : last);
        last = part.hashes.at(-1);
      }
    });
    fc.assert(property, { numRuns: 200 });
  });

  test("is split into batches below the broker's limit, with consecutive numbers", () => {
    const hashes = bigRun(300);
    const big: ResidencyChange = {
      kind: "stored",
      tier: "device",
      parent: null,
      hashes,
      tokenHashes: hashes,
    };
    const bytesMax = 4_096;
    const changes = Array.from({ length: 200 }, () => splitChange(big, 20)).flat();
    const whole: ResidencyBatch = { source: SOURCE, firstSequence: 11, changes };
    let next = 11;
    for (const part of splitBatch(whole, bytesMax)) {
      expect(part.firstSequence).toBe(next);
      next += part.changes.length;
      expect(encodeBatch(part, WALL_MS).length).toBeLessThanOrEqual(bytesMax);
    }
    expect(next).toBe(11 + changes.length);
  });

  test("one change of as many blocks as splitBatch accepts fits", () => {
    for (const bytesMax of [1_024, 65_536, 1_048_576]) {
      // 64 bytes a block; 704 bytes for the envelope and the change.
      const hashes = bigRun(Math.min(8_192, Math.floor((bytesMax - 704) / 64)));
      const kind = "stored" as const;
      const changes = [
        { kind, tier: "host" as const, parent: 1n << 60n, hashes, tokenHashes: hashes },
      ];
      const [only, ...more] = splitBatch(
        { source: SOURCE, firstSequence: 2 ** 50, changes },
        bytesMax,
      );
      expect(more).toEqual([]);
      expect(encodeBatch(only!, WALL_MS).length).toBeLessThanOrEqual(bytesMax);
    }
  });

  test("a range ends when the answer is full, and is never empty", () => {
    const changes = Array.from({ length: 50 }, (): ResidencyChange => {
      return { kind: "removed", tier: "disk", hashes: bigRun(100) };
    });
    const fitting = fitRange(changes, 5, 8_192);
    expect(fitting.length).toBeGreaterThan(5);
    expect(fitRange(changes, 5, 10)).toHaveLength(1);
    const sent = { source: SOURCE, firstSequence: 6, changes: fitting };
    const bytes = encodeAnswer({ kind: "range", batch: sent, lastSequence: 50 });
    expect(bytes.length).toBeLessThanOrEqual(8_192);
  });

  test("a million blocks are split into parts below the limit and joined again", () => {
    const bytesMax = 1_048_576;
    const runs = [
      { tier: "device" as const, parent: null, hashes: bigRun(1_000_000) },
      ...Array.from({ length: 5_000 }, (_, i): ResidencyRun => {
        return { tier: "host", parent: BigInt(i), hashes: bigRun(3) };
      }),
    ];
    let [part, blocks, last] = [0, 0, null as bigint | null];
    for (const some of snapshotParts(runs, bytesMax)) {
      const sent: ResidencyAnswer = {
        kind: "snapshot",
        source: SOURCE,
        snapshot: 5n,
        sequence: 8,
        part: part++,
        isLast: false,
        isDeviceKnown: true,
        runs: some,
      };
      const bytes = encodeAnswer(sent);
      expect(bytes.length).toBeLessThanOrEqual(bytesMax);
      const read = decodeAnswer(bytes);
      if (!read.ok || read.value.kind !== "snapshot") throw new Error("not read");
      for (const one of read.value.runs) {
        blocks += one.hashes.length;
        if (one.tier !== "device") continue;
        expect(one.parent).toBe(last);
        last = one.hashes.at(-1)!;
      }
    }
    expect([part, blocks]).toEqual([8, 1_015_000]);
  });

  test("an empty state is one empty part", () => {
    expect([...snapshotParts([], 65_536)]).toEqual([[]]);
  });
});

const storedSource = { worker: "w1" as WorkerId, rank: 0, incarnation: 7n };

function partsOf(count: number): ResidencySnapshotPart[] {
  return Array.from({ length: count }, (_, part) => ({
    ...{ kind: "snapshot", source: storedSource, snapshot: 3n, sequence: 42, part },
    isLast: part === count - 1,
    isDeviceKnown: false,
    runs: [{ tier: "host", parent: 5n, hashes: new BigUint64Array([BigInt(part), 9n]) }],
  }));
}

test("a snapshot survives a round trip as one object", async () => {
  for (const count of [1, 2, 5]) {
    const parts = partsOf(count);
    const read = decodeStoredSnapshot(await encodeStoredSnapshot(parts));
    expect(read).toEqual({ ok: true, value: parts as never });
  }
});

test("an incomplete or mixed snapshot is refused", async () => {
  const parts = partsOf(3);
  const bytes = await encodeStoredSnapshot(parts);
  for (let length = 0; length < bytes.length; length++) {
    expect(decodeStoredSnapshot(bytes.subarray(0, length)).ok).toBe(false);
  }
  const [first, second, third] = parts as [ResidencySnapshotPart, ...ResidencySnapshotPart[]];
  const others: ResidencySnapshotPart[][] = [
    [second!, third!],
    [first, third!],
    [first, { ...second!, snapshot: 4n }, third!],
    [first, { ...second!, sequence: 43 }, third!],
    [first, { ...second!, source: { ...storedSource, incarnation: 8n } }, third!],
    [...parts, { ...third!, part: 3 }],
  ];
  for (const list of others)
    expect(decodeStoredSnapshot(await encodeStoredSnapshot(list)).ok).toBe(false);
});
