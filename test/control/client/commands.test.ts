import { describe, expect, test } from "bun:test";
import {
  flush,
  newCommandId,
  pause,
  pin,
  prune,
  renewLease,
  retain,
  revokeLease,
  think,
  unpin,
  warm,
} from "hearth/client";
import { seededRandom, stringifyJson } from "../../../src/core/index.ts";

test("each command, in the members and the order of the wire", () => {
  const lines = [
    warm(["abc123", "def456"]),
    warm([1], { target: "GPU", sources: ["node-2"] }),
    prune(1234567890),
    pin([111, 222, 333]),
    pin([-9223372036854775808n], { ttl_seconds: 60 }),
    unpin([18446744073709551615n], { owner: "a" }),
    retain([1], 50, { retain_seconds: 600 }),
    think([444, 555], true),
    think([444, 555], false),
    pause([666, 777], "session-abc", 3600),
    pause([666], "session-abc"),
    renewLease("session-abc", 7200),
    revokeLease("a", { id: "1", issuer: "r", epoch: 2n, seq: 3, not_after: 4.5 }),
    flush(),
  ].map((command) => stringifyJson(command));
  expect(lines).toEqual([
    '{"type":"Warm","block_keys":["abc123","def456"],"target_tier":"CPU_TIER1"}',
    '{"type":"Warm","block_keys":[1],"target_tier":"GPU","sources":["node-2"]}',
    '{"type":"Prune","after_block_hash":1234567890}',
    '{"type":"Cache","block_hashes":[111,222,333],"pin":true}',
    '{"type":"Cache","block_hashes":[-9223372036854775808],"pin":true,"ttl_seconds":60}',
    '{"type":"Cache","block_hashes":[18446744073709551615],"pin":false,"owner":"a"}',
    '{"type":"Cache","block_hashes":[1],"retain":50,"retain_seconds":600}',
    '{"type":"Think","block_hashes":[444,555],"transient":true}',
    '{"type":"Think","block_hashes":[444,555],"transient":false}',
    '{"type":"Pause","block_hashes":[666,777],"ttl_seconds":3600,"lease_id":"session-abc"}',
    '{"type":"Pause","block_hashes":[666],"ttl_seconds":null,"lease_id":"session-abc"}',
    '{"type":"RenewLease","lease_id":"session-abc","new_ttl_seconds":7200}',
    '{"type":"RevokeLease","lease_id":"a","id":"1","issuer":"r","epoch":2,"seq":3,"not_after":4.5}',
    '{"type":"Flush"}',
  ]);
});

describe("a number that names no block", () => {
  test.each([2 ** 53, 0.5, Number.NaN, 2n ** 64n, -(2n ** 63n) - 1n])("%p is refused", (block) => {
    expect(() => pin([block])).toThrow("is not a valid 64-bit block hash");
  });
});

test("ids are 128 bits of chance", () => {
  const ids = new Set(Array.from({ length: 1_000 }, () => newCommandId()));
  expect(ids.size).toBe(1_000);
  for (const id of ids) expect(id).toMatch(/^[0-9a-f]{32}$/);
  expect(newCommandId(seededRandom(1))).toBe(newCommandId(seededRandom(1)));
});
