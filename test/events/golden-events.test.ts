import { describe, expect, test } from "bun:test";
import { decodeEngineBatch, type EngineEvent, encodeEngineBatch } from "../../src/events/index.ts";
import { hex, pack } from "./examples.ts";

/** Examples of vLLM's and SGLang's batches that define the supported formats. */

const VLLM_POSITIONAL = [
  "93 cb41d954fc40200000",
  "91 98 ab'BlockStored' 92 cf7b0bf7bf7fd01682 cf0b368b33d87bf3bf c0",
  "98 01 02 03 04 05 06 07 08 04 c0 a3'GPU' c0",
  "00",
].join(" ");

const SGLANG_POSITIONAL = [
  "93cb41d954fc402000009397ab426c6f636b53746f72656491d3cf97adeedb59e05bc0940102030404c0a347505593",
  "ac426c6f636b52656d6f76656491d3cf97adeedb59e05ba347505591b0416c6c426c6f636b73436c656172656400",
].join("");

const PLAIN_STORED = {
  kind: "stored",
  parent: null,
  blockTokens: 4,
  loraName: null,
  loraId: null,
  medium: "GPU",
  extras: null,
  group: null,
  cacheSalt: null,
  locality: null,
  ownership: null,
  sessionId: null,
  eagleNext: null,
} as const;

const ALONE = { locality: null, ownership: null, group: null } as const;

describe("golden batches of engines", () => {
  test("vLLM, positional", () => {
    const read = decodeEngineBatch(hex(VLLM_POSITIONAL));
    const event: EngineEvent = {
      ...PLAIN_STORED,
      hashes: [0x7b0bf7bf7fd01682n, 0x0b368b33d87bf3bfn],
      tokens: Uint32Array.of(1, 2, 3, 4, 5, 6, 7, 8),
    };
    expect(read).toEqual({
      ok: true,
      value: { seconds: 1_700_000_000.5, rank: 0, events: [event] },
    });
  });

  test("SGLang, positional, with signed hashes", () => {
    const read = decodeEngineBatch(hex(SGLANG_POSITIONAL));
    const hash = BigInt.asUintN(64, -3_488_128_144_981_237_669n);
    expect(hash).toBe(0xcf97adeedb59e05bn);
    const events: EngineEvent[] = [
      { ...PLAIN_STORED, hashes: [hash], tokens: Uint32Array.of(1, 2, 3, 4) },
      { kind: "removed", hashes: [hash], medium: "GPU", ...ALONE },
      { kind: "cleared", ownership: null },
    ];
    expect(read).toEqual({ ok: true, value: { seconds: 1_700_000_000.5, rank: 0, events } });
  });

  test("vLLM, by name, decoded and encoded", () => {
    const hash = 8_866_452_693_264_111_234n;
    const bytes = pack([
      1_700_000_000.5,
      [
        {
          type: "BlockStored",
          block_hashes: [hash],
          parent_block_hash: null,
          token_ids: [1, 2, 3, 4],
          block_size: 4,
          lora_id: null,
          medium: "GPU",
          lora_name: null,
        },
        { type: "BlockRemoved", block_hashes: [hash], medium: "GPU" },
        { type: "AllBlocksCleared" },
      ],
      0,
    ]);
    const batch = {
      seconds: 1_700_000_000.5,
      rank: 0,
      events: [
        { ...PLAIN_STORED, hashes: [hash], tokens: Uint32Array.of(1, 2, 3, 4) },
        { kind: "removed" as const, hashes: [hash], medium: "GPU", ...ALONE },
        { kind: "cleared" as const, ownership: null },
      ],
    };
    expect(decodeEngineBatch(bytes)).toEqual({ ok: true, value: batch });
    expect(Buffer.from(encodeEngineBatch(batch)).toString("hex")).toBe(
      Buffer.from(bytes).toString("hex"),
    );
  });
});
