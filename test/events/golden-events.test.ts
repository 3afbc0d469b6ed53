import { describe, expect, test } from "bun:test";
import {
  decodeEngineBatch,
  decodeEnvelope,
  decodeRouterEvents,
  type EngineEvent,
  encodeEngineBatch,
  encodeEnvelope,
  encodeRouterEvents,
  mediaHash,
  localHash as nativeLocalHash,
  type RouterEvent,
  saltSeed,
  sequenceHash,
  workerNumber,
} from "../../src/events/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { hex, pack } from "./examples.ts";
import { localHash, localHashes, sequenceHashes, xxh3, xxh3Literal } from "./literal-hashes.ts";

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

/** Vectors of Dynamo's hashes and messages. */

function upTo(count: number, first = 1): Uint32Array {
  return Uint32Array.from({ length: count }, (_, i) => first + i);
}

const CASES: readonly {
  readonly name: string;
  readonly tokens: Uint32Array;
  readonly block: number;
  readonly seed?: bigint;
  readonly isEagle?: boolean;
  readonly locals: readonly bigint[];
  /** After the first one, which is the first local hash. */
  readonly sequences: readonly bigint[];
}[] = [
  {
    name: "1..12 in fours",
    tokens: upTo(12),
    block: 4,
    locals: [14643705804678351452n, 16777012769546811212n, 483935686894639516n],
    sequences: [4945711292740353085n, 12583592247330656132n],
  },
  {
    name: "0..47 in sixteens",
    tokens: upTo(48, 0),
    block: 16,
    locals: [15310707395893867146n, 15292316782987903195n, 5532946206955930018n],
    sequences: [13769157705258532664n, 11879827756109914528n],
  },
  {
    name: "tokens of a model",
    tokens: Uint32Array.of(151644, 8948, 198, 2610, 525, 264, 10950, 17847),
    block: 4,
    locals: [15555418713015055049n, 11957693677769801837n],
    sequences: [5235654965516222499n],
  },
  {
    name: "a LoRA",
    tokens: upTo(8),
    block: 4,
    seed: saltSeed("adapter-a", null),
    locals: [11381080598872079209n, 5698110331184095209n],
    sequences: [17518568667535815909n],
  },
  {
    name: "a salt",
    tokens: upTo(8),
    block: 4,
    seed: saltSeed(null, "tenant-a"),
    locals: [5738685477468498325n, 11202231085456067787n],
    sequences: [1076233986426276607n],
  },
  {
    name: "a LoRA and a salt",
    tokens: upTo(8),
    block: 4,
    seed: saltSeed("adapter-a", "tenant-a"),
    locals: [9967753091837871098n, 17145582438027477403n],
    sequences: [8253787442643436499n],
  },
  {
    name: "EAGLE",
    tokens: upTo(9),
    block: 4,
    isEagle: true,
    locals: [1914873892905420881n, 1929047464662796003n],
    sequences: [13136491855314414045n],
  },
];

describe("Dynamo's hashes", () => {
  for (const { name, tokens, block, seed, isEagle, locals, sequences } of CASES) {
    test(name, () => {
      const options = { ...(seed === undefined ? {} : { seed }), isEagle: isEagle ?? false };
      const got = localHashes(tokens, block, options);
      expect([...got]).toEqual([...locals]);
      expect([...sequenceHashes(got)]).toEqual([locals[0]!, ...sequences]);
      expect(sequenceHash(locals[0]!, locals[1]!)).toBe(sequences[0]!);
      expect([...sequenceHashes(got.subarray(1), locals[0]!)]).toEqual([...sequences]);
    });
  }

  test("seeds, text and media", () => {
    expect(xxh3(new TextEncoder().encode("test data"), 1337n)).toBe(13226331709069118873n);
    expect(saltSeed("adapter-a", null)).toBe(8842669519798868182n);
    expect(saltSeed(null, "tenant-a")).toBe(1948188790972764086n);
    expect(saltSeed("adapter-a", "tenant-a")).toBe(10790858310771630931n);
    expect(saltSeed("", "")).toBe(1337n);
    const media = [0xffn, 0x0123456789abcdefn];
    expect(localHash(Uint32Array.of(1, 2, 3, 4), 1337n, media)).toBe(990358581434701868n);
    expect(localHash(Uint32Array.of(1, 2, 3, 4), 1337n, media.reverse())).toBe(990358581434701868n);
    const seed = saltSeed(null, "tenant-a");
    for (const own of [media, media.toReversed(), []]) {
      const tokens = Uint32Array.of(1, 2, 3, 4);
      expect(nativeLocalHash(loadNative(), tokens, seed, own)).toBe(localHash(tokens, seed, own));
    }
    expect(mediaHash(`0123456789abcdef${"0".repeat(48)}`)).toBe(0x0123456789abcdefn);
    expect(mediaHash("a picture")).toBe(xxh3(new TextEncoder().encode("a picture"), 0n));
  });

  test("XXH3 equals the runtime's for the seeds it supports", () => {
    const data = Uint8Array.from({ length: 3_000 }, (_, i) => (i * 31 + (i >> 3)) & 0xff);
    const lengths = [...Array(300).keys(), 1_023, 1_024, 1_025, 1_088, 2_048, 2_049, 3_000];
    for (const length of lengths) {
      const some = data.subarray(0, length);
      for (const seed of [0n, 1_337n, 0xffff_ffffn]) {
        expect(xxh3Literal(some, seed)).toBe(Bun.hash.xxHash3(some, seed));
      }
    }
  });

  test("a worker's number is computed from its name", () => {
    expect(workerNumber("vllm-0")).toBe(1943803597606491n);
    expect(workerNumber("worker-0")).toBe(1186445869714687n);
  });
});

const STORED = [
  "9183a9776f726b65725f69642aac73746f726167655f74696572a6646576696365a56576656e7483a86576656e745f",
  "696407a46461746181a673746f72656483ab706172656e745f68617368c0ae73746172745f706f736974696f6ec0a6",
  "626c6f636b739183aa626c6f636b5f68617368cfcb38e4d7fb2dca5cab746f6b656e735f68617368cfcb38e4d7fb2d",
  "ca5cad6d6d5f65787472615f696e666fc0a764705f72616e6b00",
].join("");

const CLEARED = [
  "91 83 a9'worker_id' 2a ac'storage_tier' a6'device' a5'event'",
  "83 a8'event_id' 09 a4'data' a7'cleared' a7'dp_rank' 00",
].join(" ");

const OF = { workerId: 42n, tier: "device", domain: null, isTierOnly: false } as const;
const ONE = BigUint64Array.of(0xcb38e4d7fb2dca5cn);

describe("Dynamo's messages", () => {
  test("one stored block", () => {
    const event: RouterEvent = {
      ...OF,
      event: {
        id: 7n,
        rank: 0,
        data: {
          kind: "stored",
          parent: null,
          startPosition: null,
          blocks: { hashes: ONE, tokenHashes: ONE, media: null },
        },
      },
    };
    expect(decodeRouterEvents(hex(STORED))).toEqual({ ok: true, value: [event] });
    expect(Buffer.from(encodeRouterEvents([event])).toString("hex")).toBe(STORED);
  });

  test("cleared", () => {
    const event: RouterEvent = { ...OF, event: { id: 9n, rank: 0, data: { kind: "cleared" } } };
    expect(decodeRouterEvents(hex(CLEARED))).toEqual({ ok: true, value: [event] });
    expect(encodeRouterEvents([event])).toEqual(hex(CLEARED));
  });

  test("the envelope of a message", () => {
    const payload = hex(STORED);
    expect(payload.length).toBe(167);
    const head = [
      "85 ac'publisher_id' cf000462de0534951c a8'sequence' 09 ac'published_at' cf0000018bcfe5687b",
      "a5'topic' a9'kv-events' a7'payload' c4a7",
    ].join(" ");
    const whole = new Uint8Array([...hex(head), ...payload]);
    expect(whole.length).toBe(0xf8);
    const envelope = {
      publisherId: 0x462de0534951cn,
      sequence: 9n,
      publishedAtMs: 0x18bcfe5687bn,
      topic: "kv-events",
      payload,
    };
    expect(decodeEnvelope(whole)).toEqual({ ok: true, value: envelope });
    expect(encodeEnvelope(envelope)).toEqual(whole);
  });
});
