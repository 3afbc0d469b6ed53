import { heapStats } from "bun:jsc";
import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import * as protocol from "../../src/engine/protocol/index.ts";

const FRAME_BYTES_MAX = 1 << 20;

interface Seen {
  op: number;
  requestId: number;
  count: number;
  body: Uint8Array;
}

function reader(heldBytesMax?: number) {
  const options = { direction: "requests", frameBytesMax: FRAME_BYTES_MAX } as const;
  return protocol.createFrameReader(heldBytesMax ? { ...options, heldBytesMax } : options);
}

function seenOf(frame: protocol.Frame): Seen {
  const { op, requestId, count } = frame;
  return { op, requestId, count, body: new Uint8Array(frame.bytes.slice(frame.body, frame.end)) };
}

function header(length: number, op = 2, flags = 0, status = 0): Uint8Array {
  const bytes = new Uint8Array(16);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, length, true);
  view.setUint8(4, op);
  view.setUint8(5, flags);
  view.setUint16(6, status, true);
  return bytes;
}

/** A frame whose body is derived from its id. */
function frameOf(requestId: number, bodyBytes: number): Uint8Array {
  const bytes = new Uint8Array(16 + bodyBytes);
  bytes.set(header(bytes.length, 3));
  new DataView(bytes.buffer).setUint32(8, requestId, true);
  for (let i = 0; i < bodyBytes; i++) bytes[16 + i] = requestId * 31 + i;
  return bytes;
}

function concat(parts: Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function expectFrames(seen: Seen[], bodies: number[]) {
  expect(seen.map(({ requestId, body }) => [requestId, body.length])).toEqual(
    bodies.map((length, id) => [id, length]),
  );
  for (const { requestId, body } of seen)
    expect(body.every((byte, i) => byte === ((requestId * 31 + i) & 0xff))).toBe(true);
}

const arbBodies = fc.array(
  fc.integer({ min: 0, max: 40 }).map((eights) => 8 * eights),
  { maxLength: 30 },
);

describe("the frame reader", () => {
  test("splits a stream into the same frames for any chunks and pauses", () => {
    fc.assert(
      fc.property(
        arbBodies,
        fc.array(fc.integer({ min: 1, max: 700 }), { minLength: 1 }),
        fc.array(fc.boolean(), { minLength: 1 }),
        (bodies, cuts, goOns) => {
          const stream = concat(bodies.map((length, id) => frameOf(id, length)));
          const frames = reader();
          const seen: Seen[] = [];
          const sink = (frame: protocol.Frame) => goOns[seen.push(seenOf(frame)) % goOns.length]!;
          for (let at = 0, turn = 0; at < stream.length; turn++) {
            const chunk = stream.slice(at, at + cuts[turn % cuts.length]!);
            at += chunk.length;
            expect(frames.push(chunk, sink)).toBeNull();
            chunk.fill(0xff);
            if (turn % 3 === 0) expect(frames.resume(sink)).toBeNull();
          }
          while (frames.holding) expect(frames.resume(sink)).toBeNull();
          expectFrames(seen, bodies);
          expect(frames.heldBytes).toBe(0);
        },
      ),
      { seed: 20_251, numRuns: 400 },
    );
  });

  for (const chunkBytes of [1, 7, 219 * 1024])
    test(`reads 4 MiB in chunks of ${chunkBytes} in linear time and bounded memory`, () => {
      const bodies = new Array<number>(4).fill(FRAME_BYTES_MAX - 16);
      const stream = concat(bodies.map((length, id) => frameOf(id, length)));
      const frames = reader();
      const seen: Seen[] = [];
      let heldMost = 0;
      const started = Bun.nanoseconds();
      for (let at = 0; at < stream.length; at += chunkBytes) {
        frames.push(stream.subarray(at, at + chunkBytes), (frame) => seen.push(seenOf(frame)) > 0);
        heldMost = Math.max(heldMost, frames.heldBytes);
      }
      expectFrames(seen, bodies);
      expect(heldMost).toBeLessThan(FRAME_BYTES_MAX);
      // Quadratic copying of one byte at a time would move two terabytes.
      expect((Bun.nanoseconds() - started) / 1e9).toBeLessThan(10);
    });

  test("hands on a frame within one chunk without a copy", () => {
    const stream = concat([frameOf(0, 64), frameOf(1, 128)]);
    const frames = reader();
    const places: unknown[] = [];
    frames.push(stream, (frame) => places.push([frame.bytes === stream, frame.body]) > 0);
    expect(places).toEqual([
      [true, 16],
      [true, 96],
    ]);
  });

  test.each([
    ["shorter than its header", header(8), protocol.FrameStatus.malformed],
    ["of length 0", header(0), protocol.FrameStatus.malformed],
    ["not a multiple of eight", header(20), protocol.FrameStatus.malformed],
    ["too large", header(FRAME_BYTES_MAX + 8), protocol.FrameStatus.frameTooLarge],
    ["of 4 GiB", header(0xffff_fff8), protocol.FrameStatus.frameTooLarge],
    ["with an undefined flag", header(24, 2, 4), protocol.FrameStatus.malformed],
    ["that is a reply", header(24, 2, 1), protocol.FrameStatus.malformed],
    ["with a status", header(24, 2, 0, 1), protocol.FrameStatus.malformed],
    ["that hands out slots unanswered", header(32, 5, 2), protocol.FrameStatus.malformed],
  ])("refuses a frame %s from its header alone, and reads no further", (_what, bytes, status) => {
    const frames = reader();
    const never = () => expect.unreachable();
    const refused = frames.push(bytes, never);
    expect(refused).toMatchObject({ status, fatal: true });
    expect(frames.push(frameOf(1, 8), never)).toBe(refused);
    expect(frames.heldBytes).toBe(0);
  });

  test("a reader of replies refuses requests", () => {
    const frames = protocol.createFrameReader({ direction: "replies", frameBytesMax: 4096 });
    expect(frames.push(frameOf(1, 8), () => true)).toMatchObject({ fatal: true });
  });

  test("an announced large frame costs no memory before its bytes arrive", () => {
    const before = heapStats().extraMemorySize;
    const many = Array.from({ length: 256 }, () => reader());
    for (const frames of many)
      frames.push(concat([header(FRAME_BYTES_MAX, 3), new Uint8Array(8)]), () => true);
    expect(many.every((frames) => frames.heldBytes === 24)).toBe(true);
    expect(heapStats().extraMemorySize - before).toBeLessThan(64 * 2 ** 20);
  });

  test("a sender that continues while frames are held back is refused at the limit", () => {
    const frames = reader(4096);
    expect(frames.push(frameOf(0, 8), () => false)).toBeNull();
    expect(frames.push(frameOf(1, 4000), () => true)).toBeNull();
    const refused = frames.push(frameOf(2, 400), () => true);
    expect(refused).toMatchObject({ status: protocol.FrameStatus.limit, fatal: true });
  });

  test("a sink that throws ends the stream", () => {
    const frames = reader();
    const fail = () => {
      throw new Error("sink failed");
    };
    expect(() => frames.push(concat([frameOf(0, 8), frameOf(1, 8)]), fail)).toThrow("sink failed");
    expect(frames.push(frameOf(2, 8), () => true)).toMatchObject({ fatal: true });
  });
});

describe("output", () => {
  test("keeps order over partial writes and drops written bytes", () => {
    fc.assert(
      fc.property(arbBodies, fc.array(fc.nat(900), { minLength: 1 }), (bodies, takes) => {
        const output = protocol.createOutput();
        const sent: Uint8Array[] = [];
        bodies.forEach((length, id) => {
          const items = Uint8Array.from({ length }, (_, i) => id * 31 + i);
          const request = { kind: 2, layer: 9, count: length / 8, items } as const;
          protocol.encodeIdentifyRequest(output, id, request);
          const take = Math.min(takes[id % takes.length]!, protocol.pendingBytes(output));
          sent.push(protocol.pendingOutput(output).slice(0, take));
          protocol.consumeOutput(output, take);
        });
        sent.push(protocol.pendingOutput(output).slice());
        const seen: Seen[] = [];
        expect(reader().push(concat(sent), (frame) => seen.push(seenOf(frame)) > 0)).toBeNull();
        for (const one of seen) one.body = one.body.subarray(8);
        expectFrames(seen, bodies);
      }),
      { seed: 20_252, numRuns: 200 },
    );
  });
});
