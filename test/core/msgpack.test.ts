import { describe, expect, test } from "bun:test";
import { Decoder } from "@msgpack/msgpack";
import fc from "fast-check";
import { MsgpackReader, MsgpackWriter, Unreadable } from "../../src/core/index.ts";
import { pack } from "../events/examples.ts";

const integer = fc.oneof(
  fc.integer({ min: -200, max: 300 }).map(BigInt),
  fc.bigInt({ min: -(2n ** 63n), max: 2n ** 64n - 1n }),
  fc.nat({ max: 64 }).map((bits) => 2n ** BigInt(bits) - 1n),
  fc.nat({ max: 63 }).map((bits) => -(2n ** BigInt(bits))),
);

/** A value with its writer and reader. */
type Sample =
  | { readonly kind: "int"; readonly value: bigint }
  | { readonly kind: "str"; readonly value: string }
  | { readonly kind: "bin"; readonly value: Uint8Array }
  | { readonly kind: "float"; readonly value: number }
  | { readonly kind: "bool"; readonly value: boolean }
  | { readonly kind: "array" | "map"; readonly value: number };

const sample: fc.Arbitrary<Sample> = fc.oneof(
  fc.record({ kind: fc.constant("int" as const), value: integer }),
  fc.record({ kind: fc.constant("str" as const), value: fc.string({ unit: "grapheme" }) }),
  fc.record({
    kind: fc.constant("str" as const),
    value: fc.nat({ max: 70_000 }).map((length) => "x".repeat(length)),
  }),
  fc.record({ kind: fc.constant("bin" as const), value: fc.uint8Array({ maxLength: 400 }) }),
  fc.record({ kind: fc.constant("float" as const), value: fc.double({ noNaN: true }) }),
  fc.record({ kind: fc.constant("bool" as const), value: fc.boolean() }),
);

function write(writer: MsgpackWriter, { kind, value }: Sample): void {
  if (kind === "int") writer.int(value);
  else if (kind === "str") writer.str(value);
  else if (kind === "bin") writer.bin(value);
  else if (kind === "float") writer.f64(value);
  else if (kind === "bool") writer.bool(value);
}

function read(reader: MsgpackReader): unknown {
  const kind = reader.kind();
  if (kind === "int") return reader.int();
  if (kind === "str") return reader.str(1 << 20);
  if (kind === "bin") return reader.bin(1 << 20);
  return kind === "float" ? reader.number() : reader.bool();
}

const theirs = new Decoder({ useBigInt64: true });

/** As returned by the other decoder: a number for encodings of at most 32 bits. */
function same(ours: unknown, other: unknown): boolean {
  return typeof ours === "bigint" ? ours === BigInt(other as number) : Bun.deepEquals(ours, other);
}

describe("MessagePack", () => {
  test("is decoded by our reader and by an independent one", () => {
    const property = fc.property(fc.array(sample, { maxLength: 30 }), (samples) => {
      const writer = new MsgpackWriter().array(samples.length);
      for (const one of samples) write(writer, one);
      const bytes = writer.done();
      const reader = new MsgpackReader(bytes);
      expect(reader.array(30)).toBe(samples.length);
      for (const { value } of samples) expect(read(reader)).toEqual(value);
      expect(reader.isAtEnd).toBe(true);
      const other = theirs.decode(bytes) as unknown[];
      expect(samples.every(({ value }, i) => same(value, other[i]))).toBe(true);
    });
    fc.assert(property, { numRuns: 200 });
  });

  test("integers have their shortest form", () => {
    const cases: [bigint, number][] = [
      ...([
        [0n, 1],
        [127n, 1],
        [128n, 2],
        [255n, 2],
        [256n, 3],
        [65_535n, 3],
      ] as const),
      ...([
        [65_536n, 5],
        [2n ** 32n - 1n, 5],
        [2n ** 32n, 9],
        [2n ** 64n - 1n, 9],
      ] as const),
      ...([
        [-1n, 1],
        [-32n, 1],
        [-33n, 2],
        [-128n, 2],
        [-129n, 3],
        [-32_769n, 5],
      ] as const),
      [-(2n ** 31n) - 1n, 9],
    ].map(([value, bytes]) => [value!, bytes!] as [bigint, number]);
    for (const [value, bytes] of cases) {
      expect(new MsgpackWriter().int(value).done().length).toBe(bytes);
    }
    expect(new MsgpackWriter().int(2 ** 40).done()).toEqual(pack(2n ** 40n));
  });

  test("token lists of all integer widths are read", () => {
    const token = fc.oneof(fc.nat({ max: 300 }), fc.nat({ max: 2 ** 32 - 1 }));
    const property = fc.property(fc.array(fc.tuple(token, fc.boolean())), (tokens) => {
      const bytes = pack(tokens.map(([value, isLong]) => (isLong ? BigInt(value) : value)));
      const reader = new MsgpackReader(bytes);
      const into = new Uint32Array(reader.array(1 << 20));
      reader.u32s(into);
      expect([...into]).toEqual(tokens.map(([value]) => value));
      expect(reader.isAtEnd).toBe(true);
      for (let end = 1; end < bytes.length; end++) {
        const cut = new MsgpackReader(bytes.subarray(0, end));
        expect(() => cut.u32s(new Uint32Array(cut.array(1 << 20)))).toThrow(Unreadable);
      }
    });
    fc.assert(property, { numRuns: 100 });
    for (const other of [[-1], [2n ** 32n], ["1"], [1.5], [null]]) {
      const reader = new MsgpackReader(pack(other));
      expect(() => reader.u32s(new Uint32Array(reader.array(9)))).toThrow(Unreadable);
    }
  });

  test("any value can be skipped; arbitrary bytes throw only Unreadable", () => {
    const value = fc.jsonValue({ maxDepth: 6 });
    const known = fc.property(value, (one) => {
      const reader = new MsgpackReader(pack(one));
      reader.skip();
      expect(reader.isAtEnd).toBe(true);
    });
    fc.assert(known, { numRuns: 200 });
    const any = fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => {
      try {
        new MsgpackReader(bytes).skip();
      } catch (thrown) {
        expect(thrown).toBeInstanceOf(Unreadable);
      }
    });
    fc.assert(any, { numRuns: 1_000 });
    expect(() => new MsgpackReader(new Uint8Array(100).fill(0x91)).skip()).toThrow(Unreadable);
  });
});
