import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import * as protocol from "../../src/engine/protocol/index.ts";
import {
  batchOf,
  CAPACITY,
  type Columns,
  columns,
  isRefusal,
  plain,
  unwrap,
} from "./protocol-support.ts";

const { Op } = protocol;
const SEED = { seed: 20_253, numRuns: 150 };
const u32 = fc.integer({ min: 0, max: 0xffff_ffff });
const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
const safe = fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER });
const key = fc.uint8Array({ minLength: 32, maxLength: 32 });
const outcome = fc.integer({ min: 0, max: 10 });

/** Encodes a frame and decodes it through the reader, as the other side would. */
function through<Value>(
  direction: protocol.FrameDirection,
  write: (output: protocol.Output) => void,
  read: (frame: protocol.Frame) => Value,
): Value {
  const output = protocol.createOutput();
  output.bytes.fill(0xcc);
  write(output);
  const frames = protocol.createFrameReader({ direction, frameBytesMax: 1 << 20 });
  const seen: Value[] = [];
  expect(frames.push(protocol.pendingOutput(output), (frame) => seen.push(read(frame)) > 0)).toBe(
    null,
  );
  expect(seen.length).toBe(1);
  return seen[0]!;
}

const arbBlocks = fc
  .array(
    fc.record({
      digest: key,
      parent: key,
      alias: fc.option(fc.tuple(u32, u32)),
      bytes: u32,
      transient: fc.boolean(),
    }),
    { maxLength: CAPACITY },
  )
  .chain((items) => fc.record({ items: fc.constant(items), layer: u32, session: u64 }))
  .map(({ items, layer, session }) => {
    const batch = batchOf(
      {
        aliasLo: items.map((item) => item.alias?.[0] ?? 0),
        aliasHi: items.map((item) => item.alias?.[1] ?? 0),
        bytes: items.map((item) => item.bytes),
        flags: items.map((item) => (item.alias ? 2 : 0) + (item.transient ? 1 : 0)),
        digests: items.flatMap((item) => [...item.digest]),
        parents: items.flatMap((item) => [...item.parent]),
      },
      layer,
    );
    return { batch, session };
  });

const BLOCK = ["digests", "parents", "aliasLo", "aliasHi", "bytes", "flags"] as const;

describe("encoded frames are decoded unchanged", () => {
  test("blocks to reserve", () => {
    fc.assert(
      fc.property(arbBlocks, u32, ({ batch, session }, id) => {
        const into = columns();
        const options = { session: 0n };
        const read = (frame: protocol.Frame) => {
          expect(frame.requestId).toBe(id);
          return protocol.decodeReserveRequest(frame, options, into);
        };
        const write = (output: protocol.Output) =>
          protocol.encodeReserveRequest(output, id, { session }, batch);
        expect(through("requests", write, read)).toBeNull();
        expect(options.session).toBe(session);
        expect(plain(into, BLOCK, true)).toEqual(plain(batch, BLOCK, true));
      }),
      SEED,
    );
  });

  test("pages of sessions", () => {
    const item = fc.record({
      session: u64,
      idleMs: safe,
      ramBlocks: safe,
      ramBytes: safe,
      ssdBlocks: safe,
      ssdBytes: safe,
    });
    const sessions = fc.array(item, { maxLength: protocol.SESSION_LIST_MAX });
    fc.assert(
      fc.property(fc.record({ next: safe, sessions }), (page) => {
        const write = (output: protocol.Output) => protocol.encodeSessionListReply(output, 1, page);
        const read = (frame: protocol.Frame) => unwrap(protocol.decodeSessionListReply(frame));
        expect(through("replies", write, read)).toEqual(page);
      }),
      SEED,
    );
  });

  test("granted slots; an item without a slot carries only its outcome", () => {
    const arbSlots = fc.array(fc.tuple(outcome, u32, u32, u32, safe, u64), { maxLength: CAPACITY });
    fc.assert(
      fc.property(arbSlots, (items) => {
        const column = <T>(pick: (item: (typeof items)[number]) => T) => items.map(pick);
        const batch = batchOf({
          outcome: column((item) => item[0]),
          slot: column((item) => item[1]),
          generation: column((item) => item[2]),
          bytes: column((item) => item[3]),
          offset: column((item) => item[4]),
          checksum: column((item) => item[5]),
        });
        const into = columns();
        const refused = through(
          "replies",
          (output) => protocol.acquireReply.encode(output, 1, batch),
          (frame) => protocol.acquireReply.decode(frame, into),
        );
        expect(refused).toBeNull();
        items.forEach((item, i) => {
          const expected = item[0] === 0 ? item : [item[0], 0, 0, 0, 0, 0n];
          const { outcome, slot, generation, bytes, offset, checksum } = into;
          const got = [outcome[i], slot[i], generation[i], bytes[i], offset[i], checksum[i]];
          expect(got).toEqual(expected);
        });
      }),
      SEED,
    );
  });

  test("any number of tokens, and their digests", () => {
    const arbTokens = fc.array(u32, { maxLength: 300 });
    fc.assert(
      fc.property(arbTokens, fc.integer({ min: 1, max: 64 }), (tokens, blockTokens) => {
        const items = new Uint8Array(Uint32Array.from(tokens).buffer);
        const request = { kind: 0, layer: 3, count: tokens.length, items } as const;
        const into = protocol.emptyIdentifyRequest();
        const seen = through(
          "requests",
          (output) => protocol.encodeIdentifyRequest(output, 1, request),
          (frame) => {
            const refused = protocol.decodeIdentifyRequest(frame, blockTokens, 1 << 20, into);
            return refused ?? Array.from(new Uint32Array(into.items.slice().buffer));
          },
        );
        expect(seen).toEqual(tokens);
        expect(protocol.identifyDigests(into.kind, into.count, blockTokens)).toBe(
          Math.floor(tokens.length / blockTokens),
        );
      }),
      SEED,
    );
  });

  test("names and texts in any script", () => {
    const arbName = fc.string({ unit: "grapheme", maxLength: 32 }).filter((name) => {
      return new TextEncoder().encode(name).length <= 32 && !/\p{Cc}|\p{Cs}/u.test(name);
    });
    fc.assert(
      fc.property(arbName, fc.uint8Array({ maxLength: 200 }), u32, (name, manifest, features) => {
        const hello = { versionMin: 0, versionMax: 9, features, name, manifest };
        const seen = through(
          "requests",
          (output) => protocol.encodeHelloRequest(output, 7, hello),
          (frame) => protocol.decodeHelloRequest(frame),
        );
        expect(seen).toEqual({ ok: true, value: hello });
        const error = through(
          "replies",
          (output) => protocol.encodeErrorReply(output, 200, 7, 2, name),
          (frame) => protocol.decodeErrorReply(frame),
        );
        expect(error).toEqual({ ok: true, value: { status: 2, text: name } });
      }),
      SEED,
    );
  });
});

describe("refusals", () => {
  /** Changes one u32 of an encoded request, by its offset in the body, and decodes the request. */
  function changed(
    write: (output: protocol.Output) => void,
    at: number,
    value: number,
    read: (frame: protocol.Frame) => unknown,
  ): unknown {
    const lie = (output: protocol.Output) => {
      write(output);
      output.view.setUint32(16 + at, value, true);
    };
    return through("requests", lie, read);
  }

  const one = batchOf({ digests: new Array<number>(32).fill(1) });
  const hello = {
    versionMin: 1,
    versionMax: 1,
    features: 0,
    name: "n",
    manifest: new Uint8Array(5),
  };
  const writeHello = (output: protocol.Output) => protocol.encodeHelloRequest(output, 1, hello);
  const readHello = (frame: protocol.Frame) => {
    const result = protocol.decodeHelloRequest(frame);
    return result.ok ? result.value : result.refusal;
  };
  const readInto =
    (run: (frame: protocol.Frame, into: Columns) => unknown) => (frame: protocol.Frame) =>
      run(frame, columns());

  test.each([
    ["another magic", 0, 0x2a2a2a2a, protocol.FrameStatus.malformed],
    ["a later version only", 4, 0x00030002, protocol.FrameStatus.version],
    ["an earlier version only", 4, 0, protocol.FrameStatus.version],
    ["a reserved field in use", 12, 1, protocol.FrameStatus.malformed],
    ["a control character in the name", 16, 0x0a, protocol.FrameStatus.malformed],
    ["bytes behind the name's end", 40, 0x61, protocol.FrameStatus.malformed],
    ["a name that is not UTF-8", 16, 0xff, protocol.FrameStatus.malformed],
    ["a manifest longer than the frame", 48, 9, protocol.FrameStatus.malformed],
    ["a manifest shorter than the frame", 48, 0, protocol.FrameStatus.malformed],
    ["a manifest of 4 GiB", 48, 0xffff_ffff, protocol.FrameStatus.malformed],
    ["padding in use", 60, 0xff00, protocol.FrameStatus.malformed],
  ])("hello with %s", (_what, at, value, status) => {
    expect(changed(writeHello, at, value, readHello)).toMatchObject({ status, fatal: true });
  });

  test("the reason of a version refusal names both versions", () => {
    const refused = changed(writeHello, 4, 0x00030002, readHello) as protocol.Refusal;
    expect(refused.text).toContain("version 1");
    expect(refused.text).toContain("2 to 3");
  });

  test.each([
    ["undefined tier bits in a match", 4, 16, Op.match],
    ["undefined tier bits in an acquire", 4, 0x8000_0000, Op.acquire],
    ["undefined flags in an acquire", 12, 2, Op.acquire],
    ["undefined flags of a block", 16 + 76, 4, Op.reserve],
    ["an alias without its flag", 16 + 64, 1, Op.reserve],
    ["a reserved field in use", 4, 1, Op.gpuEvicted],
    ["a reserved field in use", 20, 1, Op.commit],
    ["undefined flags of a commit", 16, 2, Op.commit],
    ["a checksum without its flag", 8, 1, Op.commit],
    ["an undefined kind of alias", 4, 2, Op.alias],
    ["a u64 alias that is longer", 8 + 32 + 8, 1, Op.alias],
    ["an undefined kind of item", 0, 4, Op.identify],
  ])("%s", (_what, at, value, op) => {
    expect(changed((output) => write(output, op), at, value, readInto(read))).toMatchObject({
      status: protocol.FrameStatus.malformed,
      fatal: true,
    });
  });

  test.each([Op.match, Op.reserve, Op.acquire, Op.commit, Op.abort, Op.gpuEvicted, Op.alias])(
    "more items than a batch holds: operation %d is refused, the connection lives",
    (op) => {
      const seen = through(
        "requests",
        (output) => write(output, op),
        (frame) => read(frame, columns(0)),
      );
      expect(seen).toMatchObject({ status: protocol.FrameStatus.limit, fatal: false });
    },
  );

  test("tokens for more digests than fit a reply", () => {
    const items = new Uint8Array(4 * 9);
    const seen = through(
      "requests",
      (output) => protocol.encodeIdentifyRequest(output, 1, { kind: 0, layer: 0, count: 9, items }),
      (frame) =>
        protocol.decodeIdentifyRequest(frame, 1, 16 + 8 * 32, protocol.emptyIdentifyRequest()),
    );
    expect(seen).toMatchObject({ status: protocol.FrameStatus.limit, fatal: false });
  });

  test.each([
    ["an undefined outcome", 0, 11],
    ["an offset no double holds", 20, 2 ** 21],
  ])("an acquire reply with %s", (_what, at, value) => {
    const slots = batchOf({ outcome: [0], slot: [1], generation: [1], bytes: [8], offset: [64] });
    const seen = through(
      "replies",
      (output) => {
        protocol.acquireReply.encode(output, 1, slots);
        output.view.setUint32(16 + at, value, true);
      },
      (frame) => protocol.acquireReply.decode(frame, columns()),
    );
    expect(isRefusal(seen)).toBe(true);
  });

  test("an acquire reply with a checksum of a block that was not acquired", () => {
    const seen = through(
      "replies",
      (output) => {
        protocol.acquireReply.encode(output, 1, batchOf({ outcome: [1] }));
        output.view.setUint32(16 + 28, 1, true);
      },
      (frame) => protocol.acquireReply.decode(frame, columns()),
    );
    expect(isRefusal(seen)).toBe(true);
  });

  test("an error reply with a text of more than 512 bytes", () => {
    const bytes = new Uint8Array(16 + 8 + 520).fill(0x78);
    const view = new DataView(bytes.buffer);
    for (const [at, word] of [bytes.length, 0x0001_0103, 1, 0, 520, 0].entries())
      view.setUint32(4 * at, word, true);
    const reader = protocol.createFrameReader({ direction: "replies", frameBytesMax: 4096 });
    let answer: unknown;
    reader.push(bytes, (frame) => {
      answer = protocol.decodeErrorReply(frame);
      return true;
    });
    expect(answer).toMatchObject({ ok: false });
  });

  test("a long text is cut between characters", () => {
    const seen = through(
      "replies",
      (output) => protocol.encodeErrorReply(output, 1, 1, 7, `x${"é".repeat(400)}`),
      (frame) => protocol.decodeErrorReply(frame),
    );
    expect(seen).toEqual({ ok: true, value: { status: 7, text: `x${"é".repeat(255)}` } });
  });

  function write(output: protocol.Output, op: number): void {
    const blocks = { ...one, count: 1 };
    if (op === Op.match) protocol.encodeMatchRequest(output, 1, { tiers: 0 }, blocks);
    if (op === Op.acquire)
      protocol.encodeAcquireRequest(
        output,
        1,
        { tiers: 0, deadlineMs: 0, stopAtMiss: false },
        blocks,
      );
    if (op === Op.reserve) protocol.encodeReserveRequest(output, 1, { session: 0n }, blocks);
    if (op === Op.gpuEvicted) protocol.encodeGpuEvictedRequest(output, 1, blocks);
    if (op === Op.commit) protocol.commitRequest.encode(output, 1, blocks);
    if (op === Op.abort) protocol.encodeHandlesRequest(output, op, 1, blocks);
    if (op === Op.alias) protocol.encodeAliasRequest(output, 1, { kind: 0 }, blocks);
    if (op === Op.identify)
      protocol.encodeIdentifyRequest(output, 1, {
        kind: 0,
        layer: 0,
        count: 2,
        items: one.digests,
      });
  }

  function read(frame: protocol.Frame, into: Columns): protocol.Refusal | null {
    const options = { session: 0n, tiers: 0, deadlineMs: 0, stopAtMiss: false, kind: 0 as const };
    if (frame.op === Op.match) return protocol.decodeMatchRequest(frame, options, into);
    if (frame.op === Op.acquire) return protocol.decodeAcquireRequest(frame, options, into);
    if (frame.op === Op.reserve) return protocol.decodeReserveRequest(frame, options, into);
    if (frame.op === Op.gpuEvicted) return protocol.decodeGpuEvictedRequest(frame, into);
    if (frame.op === Op.commit) return protocol.commitRequest.decode(frame, into);
    if (frame.op === Op.abort) return protocol.decodeHandlesRequest(frame, into);
    if (frame.op === Op.alias) return protocol.decodeAliasRequest(frame, options, into);
    return protocol.decodeIdentifyRequest(frame, 16, 1 << 20, protocol.emptyIdentifyRequest());
  }
});
