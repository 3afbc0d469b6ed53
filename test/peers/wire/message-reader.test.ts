import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { MessageReader, withLength } from "../../../src/peers/wire/index.ts";

const messages = fc.array(fc.uint8Array({ minLength: 1, maxLength: 9_000 }), { maxLength: 6 });

describe("the message reader", () => {
  test("returns the same messages for any chunks", () => {
    const strides = fc.array(fc.integer({ min: 1, max: 5_000 }), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(messages, strides, (sent, sizes) => {
        const stream = Buffer.concat(sent.map((one) => withLength(one)));
        const reader = new MessageReader(10_000);
        const came: Uint8Array[] = [];
        for (let from = 0, i = 0; from < stream.length; i++) {
          const chunk = new Uint8Array(stream.subarray(from, from + sizes[i % sizes.length]!));
          from += chunk.length;
          for (let at = 0; at < chunk.length; ) {
            at = reader.take(chunk, at);
            if (reader.message !== null) came.push(reader.message.slice());
          }
          chunk.fill(0xee);
        }
        expect(came).toEqual(sent);
        expect(reader.within).toBe(false);
        expect(reader.fault).toBeNull();
      }),
      { numRuns: 200, seed: 8 },
    );
  });

  test("leaves the bytes after a message", () => {
    const reader = new MessageReader(100);
    const chunk = new Uint8Array([...withLength(new Uint8Array([1, 2, 3])), 9, 9, 9, 9, 9]);
    expect(reader.take(chunk, 0)).toBe(7);
    expect(reader.message).toEqual(new Uint8Array([1, 2, 3]));
  });

  test("reports an incomplete message", () => {
    const reader = new MessageReader(100);
    const bytes = withLength(new Uint8Array(5));
    expect(reader.within).toBe(false);
    for (let at = 0; at < bytes.length - 1; at++) {
      reader.take(bytes.subarray(at, at + 1), 0);
      expect(reader.message).toBeNull();
      expect(reader.within).toBe(true);
    }
    reader.take(bytes.subarray(-1), 0);
    expect(reader.message).toEqual(new Uint8Array(5));
  });

  test.each([
    [0, "empty message"],
    [101, "message of 101 bytes, maximum 100"],
    [2 ** 32 - 1, "message of 4294967295 bytes, maximum 100"],
  ])("refuses a length of %d permanently", (length, why) => {
    const reader = new MessageReader(100);
    const bytes = new Uint8Array(200);
    new DataView(bytes.buffer).setUint32(0, length, true);
    expect(reader.take(bytes, 0)).toBe(200);
    expect([reader.fault, reader.message]).toEqual([why, null]);
    expect(reader.take(withLength(new Uint8Array(1)), 0)).toBe(5);
    expect([reader.fault, reader.message]).toEqual([why, null]);
  });

  test("allocates nothing for a length alone", () => {
    const readers: MessageReader[] = [];
    Bun.gc(true);
    const before = process.memoryUsage().external;
    for (let i = 0; i < 200; i++) {
      const reader = new MessageReader(9 * 2 ** 20);
      const bytes = new Uint8Array(10);
      new DataView(bytes.buffer).setUint32(0, 9 * 2 ** 20, true);
      reader.take(bytes, 0);
      readers.push(reader);
    }
    expect(process.memoryUsage().external - before).toBeLessThan(10 * 2 ** 20);
    expect(readers.every((reader) => reader.within)).toBe(true);
  });
});
