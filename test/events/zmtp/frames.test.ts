import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  encodeMessage,
  engineBinds,
  FrameReader,
  formatEndpoint,
  parseEndpoint,
  type ZmtpFrame,
} from "../../../src/events/zmtp/index.ts";

const frame = fc.oneof(
  fc.uint8Array({ maxLength: 20 }),
  fc.integer({ min: 250, max: 70_000 }).map((length) => new Uint8Array(length).fill(length & 0xff)),
);

/** The same bytes in pieces, split at `cuts`. */
function pieces(bytes: Uint8Array, cuts: readonly number[]): Uint8Array[] {
  const places = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  const ends = [...places, bytes.length];
  return ends.map((end, i) => bytes.subarray(i === 0 ? 0 : ends[i - 1]!, end));
}

function readAll(chunks: readonly Uint8Array[], bytesMax = 1 << 20) {
  const reader = new FrameReader(bytesMax);
  const frames: ZmtpFrame[] = [];
  for (const chunk of chunks) {
    const why = reader.push(Buffer.from(chunk), (one) => frames.push(one) > 0);
    if (why !== null) return { why, frames };
  }
  return { why: null, frames };
}

describe("frames", () => {
  test("survive a round trip, wherever the stream is split", () => {
    const messages = fc.array(fc.array(frame, { minLength: 1, maxLength: 4 }), { maxLength: 4 });
    const property = fc.property(messages, fc.array(fc.nat(), { maxLength: 12 }), (sent, cuts) => {
      const stream = Buffer.concat(sent.map((message) => encodeMessage(message)));
      const { why, frames } = readAll(pieces(stream, cuts));
      expect(why).toBeNull();
      expect(frames.map(({ body }) => body.length)).toEqual(
        sent.flat().map(({ length }) => length),
      );
      const equal = sent.flat().every((body, i) => Buffer.compare(body, frames[i]!.body) === 0);
      expect(equal).toBe(true);
      const ends = sent.flatMap((message) => message.map((_, i) => i < message.length - 1));
      expect(frames.map(({ hasMore }) => hasMore)).toEqual(ends);
    });
    fc.assert(property, { numRuns: 100 });
  });

  test("are owned by the receiver: the next read does not change them", () => {
    const chunk = Buffer.from(encodeMessage([Uint8Array.of(1, 2, 3)]));
    const frames: ZmtpFrame[] = [];
    new FrameReader(10).push(chunk, (one) => frames.push(one) > 0);
    chunk.fill(9);
    expect([...frames[0]!.body]).toEqual([1, 2, 3]);
  });

  test("that are too long or invalid end the stream before they allocate memory", () => {
    const heads = ["02ffffffffffffffff", "020000000000000401", "08", "0500", "80", "ff"];
    for (const head of heads) {
      expect(readAll([Uint8Array.fromHex(head)], 1_024).why).not.toBeNull();
    }
    expect(readAll([Uint8Array.fromHex("020000000000000400")], 1_024).why).toBeNull();
  });

  test("after an unwanted one are not parsed", () => {
    const frames: ZmtpFrame[] = [];
    const stream = Buffer.concat([encodeMessage([Uint8Array.of(1)]), Uint8Array.of(0xff)]);
    const why = new FrameReader(10).push(stream, (one) => frames.push(one) < 1);
    expect([why, frames.length]).toEqual([null, 1]);
  });
});

describe("endpoints", () => {
  test("are parsed in the engines' syntax", () => {
    const tcp = (host: string, port: number) => ({ kind: "tcp" as const, host, port });
    expect(parseEndpoint("tcp://*:5557")).toEqual(tcp("0.0.0.0", 5557));
    expect(parseEndpoint("tcp://127.0.0.1:*")).toEqual(tcp("127.0.0.1", 0));
    expect(parseEndpoint("tcp://[::1]:80")).toEqual(tcp("::1", 80));
    expect(parseEndpoint("tcp://:::80")).toEqual(tcp("::", 80));
    expect(parseEndpoint("tcp://gpu-1.lan:5557")).toEqual(tcp("gpu-1.lan", 5557));
    expect(parseEndpoint("ipc:///run/kv")).toEqual({ kind: "ipc", path: "/run/kv" });
    const none = ["", "tcp://", "tcp://a", "tcp://a:b", "tcp://a:65536", "tcp://a b:1", "ipc://"];
    const others = ["ipc://@abstract", `ipc://${"x".repeat(108)}`, "inproc://a", "http://a:1"];
    for (const text of [...none, ...others]) expect(parseEndpoint(text)).toBeNull();
    for (const text of ["tcp://[::1]:80", "tcp://a:1", "ipc:///run/kv"]) {
      expect(formatEndpoint(parseEndpoint(text)!)).toBe(text);
    }
  });

  test("determine which end binds", () => {
    expect(engineBinds("tcp://*:5557", "vllm")).toBe(true);
    expect(engineBinds("tcp://[::]:5557", "vllm")).toBe(true);
    expect(engineBinds("ipc:///run/kv", "sglang")).toBe(true);
    expect(engineBinds("tcp://10.0.0.1:5557", "vllm")).toBe(false);
    expect(engineBinds("tcp://0.0.0.0:5557", "vllm")).toBe(false);
    expect(engineBinds("tcp://0.0.0.0:5557", "sglang")).toBe(true);
  });
});
