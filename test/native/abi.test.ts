import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  ABI_HASH,
  FUNCTIONS,
  loadNative,
  readStruct,
  STRUCTS,
  type StructName,
  type StructValue,
  writeStruct,
} from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";

const NAMES = Object.keys(STRUCTS) as StructName[];

/** Any value of a struct, and the same value with every bit inverted. */
function anyStruct(name: StructName) {
  const fields = Object.entries(STRUCTS[name].fields) as [string, { type: string }][];
  const arbitraries: Record<string, fc.Arbitrary<bigint | number | Uint8Array>> = {};
  for (const [key, { type }] of fields) {
    if (type === "u64") arbitraries[key] = fc.bigInt(0n, 2n ** 64n - 1n);
    else if (type === "u32") arbitraries[key] = fc.integer({ min: 0, max: 2 ** 32 - 1 });
    else if (type === "i32") arbitraries[key] = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
    else {
      const length = Number(type.slice("bytes".length));
      arbitraries[key] = fc.uint8Array({ minLength: length, maxLength: length });
    }
  }
  return fc.record(arbitraries);
}

function invert(name: StructName, value: Record<string, bigint | number | Uint8Array>) {
  const inverted: Record<string, bigint | number | Uint8Array> = {};
  for (const [key, item] of Object.entries(value)) {
    const { type } = (STRUCTS[name].fields as Record<string, { type: string }>)[key]!;
    if (type === "u64") inverted[key] = BigInt.asUintN(64, ~(item as bigint));
    else if (type === "u32") inverted[key] = ~(item as number) >>> 0;
    else if (type === "i32") inverted[key] = ~(item as number);
    else inverted[key] = (item as Uint8Array).map((byte) => ~byte);
  }
  return inverted;
}

describeNative("the ABI of the native library", () => {
  test("library and bindings belong to one build", () => {
    expect(loadNative().build().abiHash).toBe(ABI_HASH);
  });

  test.each(NAMES)("%s survives a round trip, field by field", (name) => {
    const native = loadNative();
    fc.assert(
      fc.property(anyStruct(name), (value) => {
        const sent = new Uint8Array(new ArrayBuffer(STRUCTS[name].size));
        const received = new Uint8Array(new ArrayBuffer(STRUCTS[name].size));
        writeStruct(name, value as StructValue<typeof name>, sent);
        const code = native.symbols.hearth_abi_echo(NAMES.indexOf(name), sent, received);
        expect(code).toBe(0);
        expect(readStruct(name, received) as unknown).toEqual(invert(name, value));
      }),
      { seed: 11, numRuns: 100 },
    );
  });

  test("the list contains exactly the structs of the library", () => {
    const some = new Uint8Array(new ArrayBuffer(256));
    const native = loadNative();
    expect(native.symbols.hearth_abi_echo(NAMES.length, some, some)).toBeLessThan(0);
    expect(Object.keys(FUNCTIONS).length).toBe(Object.keys(native.symbols).length);
  });
});
