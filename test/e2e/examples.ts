import { pageKeyOf } from "./host.ts";

const KEYS = `["${pageKeyOf("doc")}", "${pageKeyOf("doc/page")}"]`;

/** Commands as routers send them, to the letter; the keys of `warm` are whole ones. */
export const EXAMPLES = {
  warm: `{"type": "Warm", "block_keys": ${KEYS}, "target_tier": "CPU_TIER1"}`,
  prune: '{"type": "Prune", "after_block_hash": 1234567890}',
  cache: '{"type": "Cache", "block_hashes": [111, 222, 333], "pin": true}',
  think: '{"type": "Think", "block_hashes": [444, 555], "transient": true}',
  pause:
    '{"type": "Pause", "block_hashes": [666, 777], "ttl_seconds": 3600, "lease_id": "session-abc"}',
} as const;

/** Those that stand in the definition of the commands alone. */
export const OTHERS = {
  warmGpu: EXAMPLES.warm.replace("CPU_TIER1", "GPU"),
  unpin: '{"type": "Cache", "block_hashes": [111, 222, 333], "pin": false}',
  retain: '{"type": "Cache", "block_hashes": [111, 222, 333], "retain": 60, "retain_seconds": 600}',
  purge: '{"type": "Think", "block_hashes": [444, 555], "transient": false}',
  pauseForever:
    '{"type": "Pause", "block_hashes": [666, 777], "ttl_seconds": null, "lease_id": "session-abc"}',
  pauseShortly:
    '{"type": "Pause", "block_hashes": [666, 777], "ttl_seconds": 2, "lease_id": "session-abc"}',
  renew: '{"type": "RenewLease", "lease_id": "session-abc", "new_ttl_seconds": 7200}',
  revoke: '{"type": "RevokeLease", "lease_id": "session-abc"}',
  flush: '{"type": "Flush"}',
} as const;
