import { describe, expect, test } from "bun:test";
import type { FrameHeader, PeerHello } from "../../../src/peers/index.ts";
import {
  decodeAnswer,
  decodePart,
  decodeRequest,
  encodeAnswer,
  encodeFrame,
  encodeRefusal,
  encodeRequest,
  PART_BYTES_MAX,
  PAYLOAD_BYTES_MAX,
  REQUEST_BYTES_MAX,
} from "../../../src/peers/wire/index.ts";
import { FRAME, HELLO, PLAIN_FRAME, PULL, sequence } from "./golden-cases.ts";

const KEY = sequence(0);
const U32_MAX = 2 ** 32 - 1;

function u16(value: number): number[] {
  return [value & 0xff, value >>> 8];
}

function u32(value: number): number[] {
  return [...u16(value & 0xffff), ...u16(value >>> 16)];
}

/** The first eight bytes of version 2. */
function head(op: number): number[] {
  return [...u16(3), ...u16(op), ...u32(0)];
}

function many(count: number, item: readonly number[]): number[] {
  return [...u32(count), ...Array.from({ length: count }, () => item).flat()];
}

const why = (decoded: { ok: boolean; why?: string }) => decoded.why ?? "read";

describe("limits are enforced by reader and writer", () => {
  const block = { digest: KEY, layer: 0 };
  const has = (count: number) => {
    const item = [...u16(36), ...KEY, ...u32(0)];
    return new Uint8Array([...head(3), ...u32(32), ...KEY, ...many(count, item)]);
  };

  test("blocks of a request", () => {
    expect(decodeRequest(has(4_096)).ok).toBe(true);
    expect(why(decodeRequest(has(4_097)))).toBe("block: more than 4096");
    const blocks = (count: number) => Array.from({ length: count }, () => block);
    const encode = (count: number) =>
      encodeRequest({ op: "has", namespace: KEY, blocks: blocks(count) });
    expect(encode(4_096)).toEqual(has(4_096));
    expect(() => encode(4_097)).toThrow("at most 4096 blocks");
    const items = blocks(4_097).map((one) => ({ ...one, bytesMax: 1, generation: 0n }));
    expect(() => encodeRequest({ ...PULL, items })).toThrow("at most 4096 blocks");
    const whole = encodeRequest({ ...PULL, items: items.slice(1) });
    expect(whole.length).toBeLessThan(REQUEST_BYTES_MAX);
    expect(decodeRequest(whole).ok).toBe(true);
  });

  test("blocks of an answer", () => {
    const copy = { tiers: 2, bytes: 1, generation: 1n, checksum: 1n };
    const answer = (count: number) =>
      encodeAnswer({ op: "has", blocks: Array.from({ length: count }, () => copy) });
    expect(decodeAnswer(answer(4_096)).ok).toBe(true);
    expect(() => answer(4_097)).toThrow("at most 4096 blocks");
    const item = [...u16(25), ...new Uint8Array(25)];
    const lie = new Uint8Array([...head(0x103), ...u32(0), ...many(4_097, item)]);
    expect(why(decodeAnswer(lie))).toBe("block: more than 4096");
  });

  test("names, and blocks per name", () => {
    const find = (count: number) => {
      const item = [...u16(9), 8, ...sequence(0, 8)];
      return new Uint8Array([...head(4), ...u32(0), ...many(count, item)]);
    };
    expect(decodeRequest(find(256)).ok).toBe(true);
    expect(why(decodeRequest(find(257)))).toBe("name: more than 256");
    const names = Array.from({ length: 257 }, () => KEY);
    expect(() => encodeRequest({ op: "find", names })).toThrow("at most 256 names");

    const copy = { tiers: 2, bytes: 1, generation: 1n, checksum: 1n };
    const found = Array.from({ length: 65 }, () => ({ namespace: KEY, ...block, ...copy }));
    const most = Array.from({ length: 256 }, () => found.slice(1));
    expect(decodeAnswer(encodeAnswer({ op: "find", found: most })).ok).toBe(true);
    expect(() => encodeAnswer({ op: "find", found: [found] })).toThrow("64 blocks");
    const item = many(65, [...u16(93), ...new Uint8Array(93)]);
    const lie = [...head(0x104), ...u32(0), ...many(1, [...u16(item.length), ...item])];
    expect(why(decodeAnswer(new Uint8Array(lie)))).toBe("found: more than 64");
  });

  test("devices, aliases, and bytes of a model name", () => {
    const hello = (devices: number): PeerHello => {
      const rdmaDevices = Array.from({ length: devices }, (_, i) => `mlx${i % 10}`);
      return { ...HELLO, hardware: { ...HELLO.hardware, rdmaDevices } };
    };
    const bytes = encodeRequest({ op: "hello", hello: hello(16) });
    expect(decodeRequest(bytes).ok).toBe(true);
    expect(() => encodeRequest({ op: "hello", hello: hello(17) })).toThrow("16 RDMA devices");
    const devicesAt = 8 + 4 + 7 + 8 + 1 + 2;
    expect(bytes[devicesAt]).toBe(16);
    bytes[devicesAt] = 17;
    expect(why(decodeRequest(bytes))).toBe("devices: more than 16");

    const frame = (changes: Partial<FrameHeader>) => encodeFrame(0, { ...PLAIN_FRAME, ...changes });
    const aliases = Array.from({ length: 9 }, () => KEY);
    expect(() => frame({ aliases })).toThrow("8 aliases");
    const most = frame({ aliases: aliases.slice(1), model: "m".repeat(255), parent: KEY });
    expect(most.length).toBeLessThan(PART_BYTES_MAX / 8);
    expect(decodePart(most).ok).toBe(true);
    expect(() => frame({ model: "m".repeat(256) })).toThrow("255 bytes");
    expect(() => frame({ model: "é".repeat(128) })).toThrow("255 bytes");
  });
});

describe("lengths and numbers", () => {
  test.each([
    [0, "payload: empty"],
    [2 ** 32, "payload: more than 4294967295"],
    [2 ** 53, "payload: more than 4294967295"],
    [2 ** 63, "payload: more than 4294967295"],
  ])("a payload of %d bytes is refused", (bytes, words) => {
    const frame = encodeFrame(0, PLAIN_FRAME);
    const view = new DataView(frame.buffer, frame.byteOffset);
    view.setBigUint64(12 + 48, BigInt(bytes), true);
    expect(why(decodePart(frame))).toBe(words);
  });

  test("a length whose lower 32 bits alone are valid is refused", () => {
    const frame = encodeFrame(0, PLAIN_FRAME);
    const view = new DataView(frame.buffer, frame.byteOffset);
    for (let bit = 32; bit < 64; bit++) {
      view.setBigUint64(12 + 48, BigInt(PLAIN_FRAME.bytes) | (1n << BigInt(bit)), true);
      expect(decodePart(frame).ok).toBe(false);
    }
  });

  test("a count that the message cannot hold is refused before its elements are read", () => {
    const lie = new Uint8Array([...head(3), ...u32(32), ...KEY, ...u32(4_096), ...u16(36)]);
    expect(why(decodeRequest(lie))).toBe("block: more than the message holds");
    const most = new Uint8Array([...head(3), ...u32(32), ...KEY, ...u32(U32_MAX)]);
    expect(why(decodeRequest(most))).toBe("block: more than 4096");
  });

  test("a name has 8 or 32 bytes", () => {
    for (const length of [0, 7, 9, 31, 33]) {
      const name = [...u16(1 + length), length, ...sequence(0, length)];
      const lie = new Uint8Array([...head(4), ...u32(0), ...u32(1), ...name]);
      expect([length, decodeRequest(lie).ok]).toEqual([length, false]);
      const names = [sequence(0, length)];
      expect(() => encodeRequest({ op: "find", names })).toThrow("8 or 32 bytes");
    }
    const frame = encodeFrame(0, FRAME);
    const at = frame.length - 33 - 16;
    expect(frame[at]).toBe(32);
    frame[at] = 31;
    expect(why(decodePart(frame))).toBe("alias: not 8 or 32 bytes");
  });

  test("milliseconds are rounded up and clamped to 32 bits", () => {
    const asked: [number, number][] = [
      [0.2, 1],
      [-5, 0],
      [Number.NaN, 0],
      [Number.POSITIVE_INFINITY, U32_MAX],
      [1_500, 1_500],
    ];
    for (const [deadlineMs, comes] of asked) {
      const read = decodeRequest(encodeRequest({ ...PULL, deadlineMs }));
      expect(read).toMatchObject({ ok: true, request: { deadlineMs: comes } });
    }
  });

  test("a client may accept any length", () => {
    const items = [{ ...PULL.items[0]!, bytesMax: 2 ** 40 }];
    const read = decodeRequest(encodeRequest({ ...PULL, items }));
    expect(read).toMatchObject({ ok: true, request: { items: [{ bytesMax: PAYLOAD_BYTES_MAX }] } });
  });

  test("a message above the size limit is refused before decoding", () => {
    expect(why(decodeRequest(new Uint8Array(REQUEST_BYTES_MAX + 1)))).toBe("request: too long");
    expect(why(decodePart(new Uint8Array(PART_BYTES_MAX + 1)))).toBe("part: too long");
  });
});

describe("text", () => {
  function reason(text: string): string {
    const read = decodeAnswer(encodeAnswer({ op: "refused", why: text }));
    return read.ok && read.answer.op === "refused" ? read.answer.why : "";
  }

  test("a reason is one line, truncated if it is too long", () => {
    expect(reason("a\nb\u0000\u001b[31mc")).toBe("a b [31mc");
    expect(reason("\ud800x")).toBe("\ufffdx");
    for (const letter of ["x", "é", "漢", "😀"]) {
      const cut = reason(letter.repeat(600));
      expect(Buffer.byteLength(cut)).toBeWithin(500, 513);
      expect(cut.startsWith(letter.repeat(100))).toBe(true);
    }
    const part = encodeRefusal(0, { kind: "refused", why: "y".repeat(2_000) });
    expect(decodePart(part)).toMatchObject({ part: { refusal: { why: "y".repeat(512) } } });
  });

  test("control characters and invalid UTF-8 are refused", () => {
    const hello = encodeRequest({ op: "hello", hello: HELLO });
    const at = 8 + 4 + 1;
    const bad = hello.slice();
    bad[at] = 10;
    expect(why(decodeRequest(bad))).toBe("worker: not text");
    bad[at] = 0xff;
    expect(why(decodeRequest(bad))).toBe("worker: not text");
    const nobody = new Uint8Array([...head(1), ...u32(13), 0, ...new Uint8Array(12), ...u32(0)]);
    expect(why(decodeRequest(nobody))).toBe("worker: empty");
  });
});
