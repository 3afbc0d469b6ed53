import { Encoder } from "@msgpack/msgpack";

/** One block of four tokens as stored by vLLM 0.24 and later; examples override its members. */
export function storedMap(members: Readonly<Record<string, unknown>> = {}) {
  return {
    type: "BlockStored",
    block_hashes: [7n],
    parent_block_hash: null,
    token_ids: [1, 2, 3, 4],
    block_size: 4,
    lora_id: null,
    medium: "GPU",
    lora_name: null,
    ...members,
  };
}

/** One step of an engine. */
export function batchOf(events: readonly unknown[], rank: unknown = 0): Uint8Array {
  return pack([1_700_000_000.5, events, rank]);
}

const DIGEST = new Uint8Array(32).fill(5);

/** Batches of all versions of both engines, and malformed ones. */
export function exampleBatches(): Uint8Array[] {
  const stored = ["BlockStored", [7n, 8n], null, [1, 2, 3, 4, 5, 6, 7, 8], 4, null];
  return [
    batchOf([stored]),
    batchOf([[...stored, "GPU"]], null),
    batchOf([[...stored, "GPU", "adapter", [["adapter", ["pic", -3], "salt", DIGEST], null]]]),
    batchOf([[...stored, "GPU", null, null, 1, "sliding_window", 128]]),
    batchOf([["BlockStored", [-7n], 7n, [5, 6], 2, null, "CPU_PINNED", { cache_salt: "s" }]]),
    batchOf([["BlockRemoved", [7n, 8n], "GPU", 1], ["AllBlocksCleared"], ["Nothing"], 5, []]),
    batchOf([
      storedMap(),
      storedMap({ block_hashes: [9n], parent_block_hash: 7n, extra_keys: [["salt"]] }),
      storedMap({ block_hashes: [9n], medium: "CPU", token_ids: [], block_size: 0 }),
      storedMap({ block_hashes: [DIGEST], group_idx: 0, kv_cache_spec_kind: "full_attention" }),
      storedMap({ block_hashes: [3n], locality: "REMOTE", ownership: "kvcr", session_id: "s" }),
      storedMap({ block_hashes: [4n], parent_block_hash: 4n }),
      storedMap({
        block_hashes: [5n],
        token_ids: [
          [1, 2],
          [2, 3],
          [3, 4],
          [4, 5],
        ],
      }),
      storedMap({ block_hashes: [6n], lora_id: 3, cache_salt: "t", medium: "STORAGE" }),
      storedMap({ block_hashes: [6n], token_ids: [1, 2, 3, 4, 5, 6, 7, 8] }),
      { type: "BlockRemoved", block_hashes: [7n, DIGEST], medium: "GPU", group_idx: 0 },
      { type: "AllBlocksCleared" },
    ]),
  ];
}

/** Bytes as hex with blanks; text in single quotes is literal. */
export function hex(text: string): Uint8Array {
  const digits = text.replace(/'([^']*)'/g, (_, word: string) => Buffer.from(word).toString("hex"));
  return Uint8Array.fromHex(digits.replace(/\s+/g, ""));
}

const encoder = new Encoder({ useBigInt64: true });

/** MessagePack by an independent encoder; a bigint always has eight bytes. */
export function pack(value: unknown): Uint8Array {
  return encoder.encode(value);
}
