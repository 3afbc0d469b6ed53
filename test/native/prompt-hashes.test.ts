import { expect, test } from "bun:test";
import { LAYER_ALL } from "../../src/core/index.ts";
import {
  blocksOfTokens,
  keyHashes,
  loadNative,
  NativeError,
  type SequenceHashing,
  sequenceHashes,
} from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";

function hashes(tokens: readonly number[], hashing: SequenceHashing) {
  const prompt = new Uint32Array(tokens);
  const count = blocksOfTokens(prompt.length, hashing);
  const into = { local: new BigUint64Array(count), sequence: new BigUint64Array(count) };
  expect(sequenceHashes(loadNative(), prompt, hashing, into)).toBe(count);
  return { local: [...into.local], sequence: [...into.sequence] };
}

function upTo(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

/** Published or cross-checked values of Dynamo's chain. */
const VECTORS = [
  {
    tokens: upTo(1, 12),
    blockTokens: 4,
    seed: 1337n,
    local: [14643705804678351452n, 16777012769546811212n, 483935686894639516n],
    rest: [4945711292740353085n, 12583592247330656132n],
  },
  {
    tokens: upTo(0, 47),
    blockTokens: 16,
    seed: 1337n,
    local: [15310707395893867146n, 15292316782987903195n, 5532946206955930018n],
    rest: [13769157705258532664n, 11879827756109914528n],
  },
  {
    tokens: [151644, 8948, 198, 2610, 525, 264, 10950, 17847],
    blockTokens: 4,
    seed: 1337n,
    local: [15555418713015055049n, 11957693677769801837n],
    rest: [5235654965516222499n],
  },
  {
    tokens: upTo(1, 8),
    blockTokens: 4,
    seed: 8842669519798868182n,
    local: [11381080598872079209n, 5698110331184095209n],
    rest: [17518568667535815909n],
  },
  {
    tokens: upTo(1, 8),
    blockTokens: 4,
    seed: 1948188790972764086n,
    local: [5738685477468498325n, 11202231085456067787n],
    rest: [1076233986426276607n],
  },
  {
    tokens: upTo(1, 8),
    blockTokens: 4,
    seed: 10790858310771630931n,
    local: [9967753091837871098n, 17145582438027477403n],
    rest: [8253787442643436499n],
  },
  {
    tokens: upTo(1, 9),
    blockTokens: 4,
    windowTokens: 5,
    seed: 1337n,
    local: [1914873892905420881n, 1929047464662796003n],
    rest: [13136491855314414045n],
  },
];

describeNative("prompt hashes", () => {
  test.each(VECTORS)(
    "sequence hashes equal Dynamo's chain",
    ({ tokens, local, rest, ...hashing }) => {
      expect(hashes(tokens, hashing)).toEqual({ local, sequence: [local[0]!, ...rest] });
      const tail = hashes(tokens.slice(hashing.blockTokens), { ...hashing, parent: local[0]! });
      expect(tail).toEqual({ local: local.slice(1), sequence: rest });
    },
  );

  test("tokens after the last full block are ignored", () => {
    const hashing = { blockTokens: 16, seed: 1337n };
    expect(hashes(upTo(0, 50), hashing)).toEqual(hashes(upTo(0, 47), hashing));
    expect(hashes(upTo(0, 14), hashing).local).toEqual([]);
  });

  test("key hashes are the beginnings of block keys", () => {
    const native = loadNative();
    const key = new Uint8Array(32).fill(9);
    const tokens = new Uint32Array(upTo(1, 1_605));
    const digests = new Uint8Array(100 * 32);
    expect(native.prefixDigests(key, tokens, 16, digests)).toBe(100);
    const keys = new Uint8Array(100 * 32);
    native.blockKeys(digests, LAYER_ALL, keys);
    const view = new DataView(keys.buffer);
    const into = new BigUint64Array(100);
    expect(keyHashes(native, key, tokens, 16, into)).toBe(100);
    const expected = Array.from({ length: 100 }, (_, i) => view.getBigUint64(i * 32, true));
    expect([...into]).toEqual(expected);
  });

  test("invalid arguments are refused", () => {
    const into = { local: new BigUint64Array(9), sequence: new BigUint64Array(9) };
    const run = (hashing: SequenceHashing) =>
      sequenceHashes(loadNative(), new Uint32Array(8), hashing, into);
    expect(() => run({ blockTokens: 4, windowTokens: 3, seed: 0n })).toThrow(NativeError);
    const short = { ...into, local: new BigUint64Array(1) };
    expect(() =>
      sequenceHashes(loadNative(), new Uint32Array(8), { blockTokens: 4, seed: 0n }, short),
    ).toThrow("room");
  });
});
