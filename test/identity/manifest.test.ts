import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { HearthError } from "../../src/core/index.ts";
import {
  decodeManifest,
  encodeManifest,
  MANIFEST_BYTES_MAX,
  MANIFEST_EXTRA_MAX,
  MANIFEST_TEXT_BYTES_MAX,
  manifestOf,
  manifestProblem,
  type NamespaceManifest,
  namespaceKey,
} from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import golden from "./golden/manifest.json";
import { bytesOf } from "./golden.ts";

const LEAST = { model: "m", dtype: "bfloat16", layout: "vllm:NHD", blockTokens: 16 };

type GoldenManifest = typeof LEAST & { loraDigest?: string };

function goldenManifest(fields: GoldenManifest): NamespaceManifest {
  const { loraDigest, ...rest } = fields;
  return manifestOf({
    ...rest,
    loraDigest: loraDigest === undefined ? null : bytesOf(loraDigest),
  });
}

const text = fc.string({ unit: "grapheme", minLength: 1, maxLength: 40 });
const size = fc.integer({ min: 1, max: 64 });
const shard = size.chain((of) => fc.tuple(fc.constant(of), fc.integer({ min: 0, max: of - 1 })));

const anyManifest: fc.Arbitrary<NamespaceManifest> = fc
  .record({
    model: text,
    weightsRevision: fc.option(text),
    dtype: text,
    quantisation: fc.option(text),
    layout: text,
    blockTokens: fc.integer({ min: 1, max: 65_536 }),
    tp: shard,
    pp: shard,
    loraDigest: fc.option(fc.uint8Array({ minLength: 32, maxLength: 32 })),
    tenantSalt: fc.option(text),
    extra: fc.dictionary(text, text, { maxKeys: 6, noNullPrototype: true }),
  })
  .map(({ tp, pp, ...rest }) => ({
    ...rest,
    tpSize: tp[0],
    tpRank: tp[1],
    ppSize: pp[0],
    ppRank: pp[1],
  }));

const RUNS = { seed: 20260802, numRuns: 500 };

describe("the encoding of manifests", () => {
  for (const one of golden.cases) {
    test(`${one.name}: written and read byte for byte`, () => {
      const manifest = goldenManifest(one.manifest);
      expect(encodeManifest(manifest).toHex()).toBe(one.encoding);
      expect(decodeManifest(bytesOf(one.encoding))).toEqual({ ok: true, manifest });
    });
  }

  test("comes back as it went in", () => {
    fc.assert(
      fc.property(anyManifest, (manifest) => {
        expect(manifestProblem(manifest)).toBeNull();
        expect(decodeManifest(encodeManifest(manifest))).toEqual({ ok: true, manifest });
      }),
      RUNS,
    );
  });

  test("is another one as soon as one field is", () => {
    const variants: Partial<NamespaceManifest>[] = [
      {},
      { model: "n" },
      { weightsRevision: "x" },
      { dtype: "fp8" },
      { quantisation: "x" },
      { layout: "vllm:HND" },
      { blockTokens: 32 },
      { tpSize: 2 },
      { tpSize: 2, tpRank: 1 },
      { ppSize: 2 },
      { ppSize: 2, ppRank: 1 },
      { loraDigest: new Uint8Array(32) },
      { tenantSalt: "x" },
      { extra: { x: "y" } },
      { extra: { xy: "y" } },
      { extra: { x: "yy" } },
      { extra: { x: "y", y: "x" } },
    ];
    const encodings = variants.map((fields) => {
      return encodeManifest(manifestOf({ ...LEAST, ...fields })).toHex();
    });
    expect(new Set(encodings).size).toBe(variants.length);
  });

  test("does not depend on the order in which fields were given", () => {
    const extra = { b: "1", a: "2", ä: "3", "10": "4", "9": "5" };
    const turned = Object.fromEntries(Object.entries(extra).reverse());
    const one = encodeManifest(manifestOf({ ...LEAST, extra }));
    expect(encodeManifest(manifestOf({ extra: turned, ...LEAST })).toHex()).toBe(one.toHex());
  });

  test("keeps no view of the bytes it was read from", () => {
    const bytes = encodeManifest(manifestOf({ ...LEAST, loraDigest: new Uint8Array(32).fill(7) }));
    const decoded = decodeManifest(bytes);
    bytes.fill(0);
    expect(decoded.ok && decoded.manifest.loraDigest).toEqual(new Uint8Array(32).fill(7));
  });

  test("takes names that mean something to the language for names", () => {
    const extra = Object.fromEntries([
      ["__proto__", "x"],
      ["constructor", "y"],
    ]);
    const manifest = manifestOf({ ...LEAST, extra });
    const decoded = decodeManifest(encodeManifest(manifest));
    expect(decoded.ok && Object.entries(decoded.manifest.extra)).toEqual(Object.entries(extra));
  });
});

const EVERYTHING = bytesOf(golden.cases[1]!.encoding);

/** Offset of the field with this tag in the golden manifest "everything". */
function fieldAt(tag: number): number {
  const view = new DataView(EVERYTHING.buffer);
  let at = 6;
  while (EVERYTHING[at] !== tag) at += 6 + view.getUint32(at + 2, true);
  return at;
}

/** That manifest with other bytes from an offset on. */
function withBytes(at: number, ...values: number[]): Uint8Array {
  const bytes = EVERYTHING.slice();
  bytes.set(values, at);
  return bytes;
}

/** That manifest with another number in the field with this tag. */
function withNumber(tag: number, value: number): Uint8Array {
  const bytes = EVERYTHING.slice();
  new DataView(bytes.buffer).setUint32(fieldAt(tag) + 6, value, true);
  return bytes;
}

describe("manifests that are refused", () => {
  const cases: [string, RegExp, Uint8Array][] = [
    ["nothing at all", /ends inside its header/, new Uint8Array(0)],
    ["other bytes", /not a manifest/, withBytes(0, 0x41)],
    ["another version", /version 2 is not 1/, withBytes(4, 2)],
    ["another number of fields", /12 fields, not 13/, withBytes(5, 12)],
    ["an unknown tag", /tag 99 instead of 1 \(model\)/, withBytes(6, 99)],
    ["tags out of order", /tag 3 instead of 2/, withBytes(fieldAt(2), 3)],
    ["an unknown kind", /model is of kind 9/, withBytes(7, 9)],
    ["a number where text belongs", /dtype is of kind 2/, withBytes(fieldAt(3) + 1, 2)],
    ["model absent", /model is missing/, withBytes(7, 0)],
    ["absent with bytes", /absent but has/, withBytes(fieldAt(2) + 1, 0)],
    ["bytes behind the end", /1 bytes follow/, Uint8Array.of(...EVERYTHING, 0)],
    ["a length beyond the end", /ends inside model/, withBytes(8, 255, 255, 255, 255)],
    ["no UTF-8", /model is not UTF-8/, withBytes(12, 0xff)],
    ["no UTF-8 in extra", /in extra is not UTF-8/, withBytes(EVERYTHING.length - 1, 0xff)],
    ["a block of no tokens", /blockTokens 0/, withNumber(6, 0)],
    ["too many tokens", /blockTokens 65537/, withNumber(6, 65_537)],
    ["a rank beyond its size", /tpRank 8 is not/, withNumber(8, 8)],
    ["no shards", /ppSize 0 is not/, withNumber(9, 0)],
    ["oversize", /at most 65536/, new Uint8Array(MANIFEST_BYTES_MAX + 1)],
  ];
  for (const [name, why, bytes] of cases) {
    test(name, () => {
      const decoded = decodeManifest(bytes);
      expect(decoded.ok ? "taken" : decoded.why).toMatch(why);
    });
  }

  test("extra that is out of order, or has a name twice", () => {
    const two = encodeManifest(manifestOf({ ...LEAST, extra: { a: "1", b: "2" } }));
    for (const name of ["b", "a"]) {
      const bytes = two.slice();
      const [first, second] = name === "b" ? ["b", "a"] : ["a", "a"];
      bytes[bytes.length - 16] = first!.charCodeAt(0);
      bytes[bytes.length - 6] = second!.charCodeAt(0);
      const decoded = decodeManifest(bytes);
      expect(decoded).toEqual({ ok: false, why: "extra is not in order" });
    }
  });

  test("every cut", () => {
    for (let length = 0; length < EVERYTHING.length; length++) {
      expect(decodeManifest(EVERYTHING.subarray(0, length)).ok).toBe(false);
    }
  });

  test("whatever is taken is what its manifest is written as", () => {
    const offset = fc.nat(EVERYTHING.length - 1);
    const edits = fc.array(fc.tuple(offset, fc.nat(255)), { maxLength: 4 });
    fc.assert(
      fc.property(edits, (list) => {
        const mutated = EVERYTHING.slice();
        for (const [at, value] of list) mutated[at] = value;
        const decoded = decodeManifest(mutated);
        if (!decoded.ok) expect(decoded.why).not.toBe("");
        else expect(encodeManifest(decoded.manifest).toHex()).toBe(mutated.toHex());
      }),
      { seed: 20260803, numRuns: 3000 },
    );
  });

  const wrong: [RegExp, Partial<NamespaceManifest>][] = [
    [/model is empty/, { model: "" }],
    [/tenantSalt is empty/, { tenantSalt: "" }],
    [/not well-formed/, { model: "\ud800" }],
    [/dtype has 4097 bytes/, { dtype: "x".repeat(MANIFEST_TEXT_BYTES_MAX + 1) }],
    [/blockTokens 1.5/, { blockTokens: 1.5 }],
    [/loraDigest has 31 bytes/, { loraDigest: new Uint8Array(31) }],
    [/tpRank -1/, { tpRank: -1 }],
    [/a name in extra is empty/, { extra: { "": "x" } }],
    [/extra x is empty/, { extra: { x: "" } }],
    [
      /extra has 65 entries/,
      {
        extra: Object.fromEntries(
          Array.from({ length: MANIFEST_EXTRA_MAX + 1 }, (_, i) => [i, "x"]),
        ),
      },
    ],
    [
      /the manifest has \d+ bytes/,
      { extra: Object.fromEntries(Array.from({ length: 20 }, (_, i) => [i, "x".repeat(4000)])) },
    ],
  ];
  for (const [why, fields] of wrong) {
    test(`${why}`, () => {
      const manifest = manifestOf({ ...LEAST, ...fields });
      expect(manifestProblem(manifest)).toMatch(why);
      expect(() => encodeManifest(manifest)).toThrow(HearthError);
    });
  }

  test("the largest that is allowed is written", () => {
    const extra = Object.fromEntries(
      Array.from({ length: 15 }, (_, i) => [`${i}`.padStart(2, "0"), "x".repeat(4096)]),
    );
    const base = encodeManifest(manifestOf({ ...LEAST, extra })).length;
    const fill = MANIFEST_BYTES_MAX - base;
    const largest = manifestOf({ ...LEAST, extra, tenantSalt: "s".repeat(fill) });
    expect(encodeManifest(largest).length).toBe(MANIFEST_BYTES_MAX);
    const over = manifestOf({ ...LEAST, extra, tenantSalt: "s".repeat(fill + 1) });
    expect(manifestProblem(over)).toMatch(/65537 bytes/);
  });
});

describeNative("namespace keys", () => {
  for (const one of golden.cases) {
    test(`${one.name}: the key written down`, () => {
      const key = namespaceKey(loadNative(), goldenManifest(one.manifest));
      expect(key.toHex()).toBe(one.namespaceKey);
    });
  }
});
