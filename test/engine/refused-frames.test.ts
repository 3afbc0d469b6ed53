import { describe, expect, test } from "bun:test";
import * as protocol from "../../src/engine/protocol/index.ts";
import { batchOf, digestOf } from "../store/names.ts";
import { describeNative, ManualClock, waitFor } from "../support/index.ts";
import { type AgentKit, manifestBytes, openAgent } from "./agent-kit.ts";
import { frameOf, type RawEngine, type Reply, rawFrame, slotsOf } from "./raw-engine.ts";

const { Feature, FrameStatus, Op } = protocol;

/** Runs with an agent and one connection after HELLO. Another connection must not be affected. */
async function withLine(
  run: (raw: RawEngine, agent: AgentKit) => Promise<void>,
  options: Parameters<typeof openAgent>[0] = {},
): Promise<void> {
  await using agent = await openAgent(options);
  using bystander = await agent.rawGreeted();
  using raw = await agent.rawGreeted();
  await run(raw, agent);
  expect(await bystander.answersPing()).toBe(true);
  expect(agent.server.stats.faults).toBe(0);
  agent.expectNothingHeld();
}

/** The agent's last frame has this status; then it closes the connection. */
async function expectFatal(raw: RawEngine, status: number, requestId?: number): Promise<Reply> {
  const replies = await raw.untilClosed();
  expect(replies).toHaveLength(1);
  const [last] = replies as [Reply];
  expect(last).toMatchObject({
    status,
    count: 0,
    ...(requestId === undefined ? {} : { requestId }),
  });
  expect(last.text).not.toBe("");
  return last;
}

const hello =
  (over: Partial<protocol.HelloRequest> = {}) =>
  (output: protocol.Output) =>
    protocol.encodeHelloRequest(output, 1, {
      versionMin: 1,
      versionMax: 1,
      features: 0,
      name: "raw",
      manifest: manifestBytes(),
      ...over,
    });

describeNative("when things go wrong with a frame", () => {
  test("version skew", async () => {
    await using agent = await openAgent();
    for (const [versionMin, versionMax] of [
      [2, 3],
      [0, 0],
    ] as const) {
      using raw = await agent.raw();
      raw.send(hello({ versionMin, versionMax }));
      const { text } = await expectFatal(raw, FrameStatus.version, 1);
      expect(text).toContain("version 1");
      expect(text).toContain(`${versionMin}`);
    }
    using newer = await agent.raw();
    const reply = await newer.ask(hello({ versionMin: 1, versionMax: 9, features: 0xffff_ffff }));
    expect(reply).toMatchObject({ op: Op.hello, status: 0 });
    expect(new DataView(reply.body.buffer).getUint16(0, true)).toBe(1);
    expect(new DataView(reply.body.buffer).getUint32(4, true)).toBe(
      Feature.engine | Feature.mac | Feature.report,
    );
  });

  test("frame longer than `frame_bytes_max`", () =>
    withLine(async (raw) => {
      // Refused after the header: no byte of the body was sent.
      raw.sendBytes(rawFrame({ op: Op.match, count: 1, length: 2 ** 20 + 8 }));
      const last = await expectFatal(raw, FrameStatus.frameTooLarge);
      expect(last.text).toContain(`${2 ** 20}`);
    }));

  describe(
    "wrong length: under 16, no multiple of 8, " + "not what `count` asks for, bytes left over",
    () => {
      const digest = digestOf("a");
      const match = frameOf((output) =>
        protocol.encodeMatchRequest(output, 5, { tiers: 0 }, batchOf(["a"])),
      );
      const withCount = (count: number) => {
        const bytes = match.slice();
        new DataView(bytes.buffer).setUint32(12, count, true);
        return bytes;
      };
      test.each([
        ["0", rawFrame({ op: Op.ping, length: 0 })],
        ["8", rawFrame({ op: Op.ping, length: 8 })],
        ["20", rawFrame({ op: Op.ping, length: 20, body: new Uint8Array(8) })],
        ["a count below the items", withCount(0)],
        ["a count above the items", withCount(2)],
        ["a count that overflows", withCount(0xffff_ffff)],
        ["bytes left over", rawFrame({ op: Op.release, count: 1, body: new Uint8Array(16) })],
        ["a body where none is due", rawFrame({ op: Op.sessionStatus, body: new Uint8Array(16) })],
        ["half a digest", rawFrame({ op: Op.match, count: 1, body: digest.slice(0, 24) })],
        ["no body", rawFrame({ op: Op.reserve, count: 1 })],
        ["a ping of 72", rawFrame({ op: Op.ping, body: new Uint8Array(72) })],
      ])("%s", (_what, bytes) =>
        withLine(async (raw) => {
          raw.sendBytes(bytes);
          await expectFatal(raw, FrameStatus.malformed);
        }),
      );
    },
  );

  test("unknown operation", () =>
    withLine(async (raw) => {
      for (const op of [0, 23, 99, 255]) {
        raw.sendBytes(rawFrame({ op, requestId: op + 1, body: new Uint8Array(24), count: 7 }));
        expect(await raw.next()).toMatchObject({
          op,
          requestId: op + 1,
          status: FrameStatus.unknownOp,
        });
      }
      raw.sendBytes(rawFrame({ op: 200, flags: protocol.FrameFlag.noReply, requestId: 8 }));
      expect(await raw.next()).toMatchObject({ requestId: 8, status: FrameStatus.unknownOp });
      expect(await raw.answersPing()).toBe(true);
    }));

  describe("reserved field, undefined bit or flag in use", () => {
    const at = (frame: Uint8Array, offset: number) => {
      frame[offset]! |= 0x80;
      return frame;
    };
    const batch = batchOf(["a"]);
    const commit = () =>
      frameOf((output) =>
        protocol.commitRequest.encode(output, 5, {
          count: 1,
          slot: new Uint32Array([1]),
          generation: new Uint32Array([1]),
          checksum: new BigUint64Array(1),
          flags: new Uint32Array(1),
        }),
      );
    const match = () =>
      frameOf((output) => protocol.encodeMatchRequest(output, 5, { tiers: 0 }, batch));
    const reserve = () =>
      frameOf((output) => protocol.encodeReserveRequest(output, 5, { session: 0n }, batch));
    const list = () =>
      frameOf((output) =>
        protocol.encodeSessionListRequest(output, 5, { session: 0n, after: 0, max: 0 }),
      );
    test.each([
      ["header flags", at(match(), 5)],
      ["the reply flag", rawFrame({ op: Op.ping, flags: protocol.FrameFlag.reply })],
      ["a status in a request", rawFrame({ op: Op.ping, status: 1 })],
      ["no reply to a RESERVE", rawFrame({ op: Op.reserve, flags: protocol.FrameFlag.noReply })],
      ["no reply to a MATCH", rawFrame({ op: Op.match, flags: protocol.FrameFlag.noReply })],
      ["tiers", at(match(), 16 + 5)],
      ["reserved of RESERVE", at(reserve(), 16 + 4)],
      ["flags of a block", at(reserve(), 16 + 16 + 76)],
      ["flags of COMMIT", at(commit(), 16 + 16)],
      ["reserved of COMMIT", at(commit(), 16 + 20)],
      ["a checksum without its flag", at(commit(), 16 + 8)],
      ["after of SESSION_LIST beyond 2^53", at(list(), 16 + 15)],
      ["reserved of SESSION_LIST", at(list(), 16 + 20)],
      ["no reply to a SESSION_LIST", rawFrame({ op: Op.sessionList, flags: 2 })],
      ["a count for PING", rawFrame({ op: Op.ping, count: 1 })],
    ])("%s", (_what, bytes) =>
      withLine(async (raw) => {
        raw.sendBytes(bytes);
        await expectFatal(raw, FrameStatus.malformed);
      }),
    );

    test.each([
      ["magic", 16],
      ["reserved of HELLO", 16 + 12],
      ["reserved behind the manifest's length", 16 + 52],
      ["padding of the name", 16 + 16 + 31],
    ])("%s", async (_what, offset) => {
      await using agent = await openAgent();
      using raw = await agent.raw();
      raw.sendBytes(at(frameOf(hello()), offset));
      await expectFatal(raw, FrameStatus.malformed);
    });
  });

  test("more items than `items_max`", () =>
    withLine(
      async (raw, agent) => {
        const names = Array.from({ length: 17 }, (_, i) => `x${i}`);
        const batch = batchOf(names);
        const status = async (encode: (output: protocol.Output) => void) =>
          (await raw.ask(encode)).status;
        expect(
          await status((o) => protocol.encodeReserveRequest(o, 2, { session: 0n }, batch)),
        ).toBe(FrameStatus.limit);
        expect(await status((o) => protocol.encodeMatchRequest(o, 3, { tiers: 0 }, batch))).toBe(
          FrameStatus.limit,
        );
        const handles = new Uint32Array(17);
        const items = { count: 17, slot: handles, generation: handles };
        const release = await raw.ask((o) =>
          protocol.encodeHandlesRequest(o, Op.release, 4, items, true),
        );
        // The whole frame is refused, so it is answered although no answer was requested.
        expect(release).toMatchObject({ status: FrameStatus.limit, requestId: 4 });
        expect(agent.store.snapshot().slotsUsed).toBe(0);
        batch.count = 16;
        const reserved = await raw.ask((o) =>
          protocol.encodeReserveRequest(o, 5, { session: 0n }, batch),
        );
        const slots = slotsOf(reserved);
        expect(slots.count).toBe(16);
        await raw.ask((o) => protocol.encodeHandlesRequest(o, Op.abort, 6, slots));
      },
      { limits: { itemsMax: 16 } },
    ));

  describe("a frame before HELLO, or none in 5 s", () => {
    test.each([
      ["ping", rawFrame({ op: Op.ping })],
      ["an unknown one", rawFrame({ op: 77 })],
    ])("%s", async (_what, bytes) => {
      await using agent = await openAgent();
      using raw = await agent.raw();
      raw.sendBytes(bytes);
      await expectFatal(raw, FrameStatus.notGreeted);
    });

    test("silence", async () => {
      const clock = new ManualClock();
      await using agent = await openAgent({ clock });
      using silent = await agent.raw();
      using half = await agent.raw();
      half.sendBytes(frameOf(hello()).subarray(0, 60));
      using greeted = await agent.rawGreeted();
      await waitFor(() => agent.server.connections === 3);
      clock.advance(5_000);
      expect(silent.closed).toBe(false);
      clock.advance(1_500);
      for (const raw of [silent, half]) {
        expect(await expectFatal(raw, FrameStatus.notGreeted)).toMatchObject({
          op: 0,
          requestId: 0,
        });
      }
      expect(agent.server.stats.cutOff).toBe(2);
      clock.advance(3_600_000);
      expect(await greeted.answersPing()).toBe(true);
    });
  });

  test("a second HELLO", () =>
    withLine(async (raw) => {
      raw.send(hello());
      await expectFatal(raw, FrameStatus.malformed, 1);
    }));

  describe("manifest not canonical, or not served here", () => {
    const whole = manifestBytes();
    test.each([
      ["empty", new Uint8Array(0), ""],
      ["cut short", whole.subarray(0, whole.length - 1), ""],
      ["followed by more", Uint8Array.from([...whole, 0]), ""],
      ["of no shape", new Uint8Array(40).fill(0xee), ""],
    ])("%s", async (_what, manifest) => {
      await using agent = await openAgent();
      using raw = await agent.raw();
      raw.send(hello({ manifest }));
      await expectFatal(raw, FrameStatus.manifestRefused, 1);
      expect(agent.store.snapshot().slotsUsed).toBe(0);
    });
  });

  test("frame cut off by the end of the stream", () =>
    withLine(async (raw, agent) => {
      const batch = batchOf(["a"]);
      const reserve = frameOf((o) => protocol.encodeReserveRequest(o, 5, { session: 0n }, batch));
      raw.sendBytes(reserve.subarray(0, reserve.length - 1));
      raw[Symbol.dispose]();
      await waitFor(() => agent.server.connections === 1);
      expect(agent.store.snapshot()).toMatchObject({ slotsUsed: 0, stats: { reservedBlocks: 0 } });
    }));

  test("frames split at every byte, or sent ten at once, are handled the same", () =>
    withLine(async (raw) => {
      const ping = (id: number) =>
        frameOf((o) => protocol.encodePingRequest(o, id, new Uint8Array(16).fill(id)));
      for (const byte of ping(3)) raw.sendBytes(Uint8Array.of(byte));
      expect(await raw.next()).toMatchObject({ op: Op.ping, requestId: 3, status: 0 });
      raw.sendBytes(Buffer.concat(Array.from({ length: 10 }, (_, i) => ping(i))));
      for (let i = 0; i < 10; i++) expect((await raw.next()).requestId).toBe(i);
    }));
});
