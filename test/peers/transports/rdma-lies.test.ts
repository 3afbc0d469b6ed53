import { expect, test } from "bun:test";
import type { PullItem } from "../../../src/peers/index.ts";
import type { RdmaControl } from "../../../src/peers/transports/rdma/index.ts";
import { encodeFrame, encodeRefusal, encodeRequest } from "../../../src/peers/wire/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { chalk, placesFor, pullPlaces, untouchedPlace } from "./contract-kit.ts";
import { PORT } from "./plain-rdma.ts";
import { PlainPair, pullBody, type RawRdma } from "./rdma-plain-kit.ts";

const FIND = encodeRequest({ op: "find", names: [] });
const HELLO: RdmaControl = { kind: "hello", version: 1, wanted: 1, rails: [PORT] };
const { gid, lid, mtu, readsOut, readsIn } = PORT;
const ADDRESS = { gid, lid, mtu, readsOut, readsIn, queuePair: 77, psn: 1 };
const JOIN: RdmaControl = { kind: "join", addresses: [ADDRESS] };
const WINDOW = { address: 0x7000_0000_0000n, key: 4_000 };

describeNative("an RDMA server", () => {
  test("ends a connection after an invalid message, and reports the reason", async () => {
    await using pair = await PlainPair.make();
    const item = pair.serverHost.server.put(1, 1_000);
    const pull: RdmaControl = { kind: "pull", id: 0, body: pullBody([item]) };
    const nonsense: Record<string, readonly RdmaControl[]> = {
      "before the hello": [JOIN],
      "second hello": [HELLO, HELLO],
      "request before its queue pairs": [HELLO, pull],
      "second join": [HELLO, JOIN, JOIN],
      "other rails": [HELLO, { kind: "join", addresses: [ADDRESS, ADDRESS] }],
      "as a pull": [HELLO, JOIN, { kind: "pull", id: 0, body: FIND }],
      "on a server connection": [HELLO, JOIN, { kind: "part", id: 0, body: FIND }],
      "was not given": [HELLO, JOIN, pull, { kind: "taken", id: 0, index: 0 }],
    };
    for (const [words, messages] of Object.entries(nonsense)) {
      await using raw = await pair.raw();
      raw.say(...messages);
      const bye = await raw.hear("bye");
      expect(bye.fault).toBe("protocol");
      expect(bye.why).toContain(words);
      await raw.over();
    }
    await waitFor(
      () => pair.serverHost.transport.inboundConnections === 0 && pair.serverHost.server.lent === 0,
    );
    expect([...pair.fabric.connections.values()].every(({ lent }) => lent === 0)).toBe(true);
  });

  test("refuses ports that reach none of its own with a reason", async () => {
    await using pair = await PlainPair.make();
    await using raw = await pair.raw();
    raw.say({ ...HELLO, rails: [{ ...PORT, linkLayer: "infiniband" }] });
    expect(await raw.hear("bye")).toMatchObject({ fault: "refused" });
    await raw.over();
    expect(pair.fabric.connections.size).toBe(0);
  });

  test("times out a client that never joins", async () => {
    await using pair = await PlainPair.make({ limits: { setUpMs: 200 } });
    await using raw = await pair.raw();
    raw.say(HELLO);
    await raw.over();
    const whys = pair.serverHost.log.map(({ fields }) => String(fields.why));
    expect(whys.some((why) => why.includes("queue pairs were not connected"))).toBe(true);
    await waitFor(() => [...pair.fabric.connections.values()].every(({ fault }) => fault !== null));
  });

  test("revokes a block that is never returned, which then cannot be read", async () => {
    await using pair = await PlainPair.make({ limits: { lentMs: 100 } });
    const { server } = pair.serverHost;
    const item = server.put(1, 1_000);
    await using client = await pair.joined();
    const { raw } = client;
    raw.say({ kind: "pull", id: 0, body: pullBody([item]) });
    const { window } = await raw.hear("lent");
    expect(server.lent).toBe(1);
    expect(await raw.hear("lost")).toMatchObject({ id: 0, index: 0 });
    await waitFor(() => server.lent === 0 && server.serving === 0);
    const read = client.pair.read(window, 0, 1_000);
    expect(await read.done).toEqual({ ok: false, fault: "broken" });
    await raw.over();
  });

  test("gives a client a short time to return blocks after a cancellation", async () => {
    await using pair = await PlainPair.make({ limits: { graceMs: 100 } });
    const { server } = pair.serverHost;
    const items = [1, 2].map((seed) => server.put(seed, 1_000));
    await using client = await pair.joined();
    const { raw } = client;
    raw.say({ kind: "pull", id: 0, body: pullBody(items) });
    await waitFor(() => raw.heard.filter(({ kind }) => kind === "lent").length === 2);
    raw.say({ kind: "cancel", id: 0 }, { kind: "taken", id: 0, index: 0 });
    await waitFor(() => server.released === 1);
    expect(raw.heard.some(({ kind }) => kind === "lost")).toBe(false);
    expect(await raw.hear("lost")).toMatchObject({ id: 0, index: 1 });
    await waitFor(() => server.lent === 0 && server.serving === 0);
    raw.say({ kind: "taken", id: 0, index: 0 }, { kind: "ping", nonce: 3 });
    expect(await raw.hear("pong")).toEqual({ kind: "pong", nonce: 3 });
  });

  test("lets a block be read through its own window only", async () => {
    await using pair = await PlainPair.make();
    const { server } = pair.serverHost;
    const item = server.put(1, 1_000);
    server.put(2, 4_096);
    await using client = await pair.joined();
    client.raw.say({ kind: "pull", id: 0, body: pullBody([item]) });
    const { window } = await client.raw.hear("lent");
    const beyond = client.pair.read(window, 0, 1_001);
    expect(await beyond.done).toEqual({ ok: false, fault: "broken" });
    await client.raw.over();
    await waitFor(() => server.lent === 0);
  });
});

type Answer = (
  pull: Extract<RdmaControl, { kind: "pull" }>,
  item: PullItem,
  pair: PlainPair,
) => readonly RdmaControl[];

/** Sends a server's welcome. */
async function welcome(pair: PlainPair, connection: RawRdma): Promise<void> {
  await connection.hear("hello");
  const queuePair = pair.serverHost.rdma.link(0, {} as never);
  const pairs = [{ rail: 0, address: queuePair.address }];
  connection.say({ kind: "welcome", version: 1, requests: 8, pairs });
  await connection.hear("join");
}

/** Dials a server that behaves well until a pull, which it answers with `answer`. */
async function pullFrom(answer: Answer) {
  await using pair = await PlainPair.make({}, { limits: { stallMs: 600, progressMs: 100 } });
  const item = pair.serverHost.server.put(1, 10_000);
  const heard: RdmaControl[] = [];
  await using serverHost = await pair.rawServer(async (connection) => {
    await welcome(pair, connection);
    connection.say(...answer(await connection.hear("pull"), item, pair));
    await connection.hear("taken").catch(() => undefined);
    heard.push(...connection.heard);
  });
  await using connection = await pair.connection(serverHost.port);
  const places = placesFor([item, { ...item, bytesMax: 20_000 }]);
  chalk(pair.client.region, places);
  const outcome = await pullPlaces(connection, places);
  const areUntouched = places.every((place) => untouchedPlace(pair.client.region, place));
  return { outcome, fault: connection.fault, areUntouched, reads: pair.fabric.reads };
}

describeNative("an RDMA client", () => {
  test("ends the dial after an invalid answer to its hello", async () => {
    await using pair = await PlainPair.make();
    const pairs = [{ rail: 0, address: ADDRESS }];
    const answers: Record<string, RdmaControl> = {
      "was not offered": {
        ...{ kind: "welcome", version: 1, requests: 8 },
        pairs: [{ rail: 1, address: ADDRESS }],
      },
      "something that was not offered": { kind: "welcome", version: 2, requests: 8, pairs },
      "expected a welcome": { kind: "pong", nonce: 0 },
      "too full": { kind: "bye", fault: "refused", why: "too full" },
    };
    for (const [words, answer] of Object.entries(answers)) {
      await using serverHost = await pair.rawServer(async (connection) => {
        await connection.hear("hello");
        connection.say(answer);
      });
      const dialled = await pair.dial(serverHost.port);
      expect(dialled.ok).toBe(false);
      if (!dialled.ok) expect(dialled.fault.why).toContain(words);
    }
    expect(pair.fabric.connections.size).toBe(0);
  });

  const header = (pair: PlainPair) => pair.serverHost.server.header(1);
  const LIES: Record<string, Answer> = {
    "frame address": ({ id }, _, pair) => {
      const body = encodeFrame(0, { ...header(pair), layer: 4 });
      return [{ kind: "lent", id, rail: 0, window: WINDOW, body }];
    },
    "longer than requested": ({ id }, _, pair) => {
      const body = encodeFrame(0, { ...header(pair), bytes: 10_001 });
      return [{ kind: "lent", id, rail: 0, window: WINDOW, body }];
    },
    "unknown rail": ({ id }, _, pair) => [
      { kind: "lent", id, rail: 1, window: WINDOW, body: encodeFrame(0, header(pair)) },
    ],
    "without a readable block": ({ id }, _, pair) => [
      { kind: "part", id, body: encodeFrame(0, header(pair)) },
    ],
    "readable block with a refusal": ({ id }) => {
      const body = encodeRefusal(0, { kind: "absent" });
      return [{ kind: "lent", id, rail: 0, window: WINDOW, body }];
    },
    "second answer": ({ id }) => {
      const body = encodeRefusal(0, { kind: "absent" });
      return [1, 2].map(() => ({ kind: "part", id, body }) as const);
    },
    "lost block": ({ id }) => [{ kind: "lost", id, index: 0 }],
    "never sent": ({ id }, _, pair) => [
      { kind: "lent", id: id + 5, rail: 0, window: WINDOW, body: encodeFrame(0, header(pair)) },
    ],
    unsupported: ({ id }) => [{ kind: "part", id, body: new Uint8Array(9) }],
    "on a client connection": ({ id }) => [{ kind: "taken", id, index: 0 }],
  };
  for (const [words, lie] of Object.entries(LIES)) {
    test(`ends pull and connection, and reads nothing, after: ${words}`, async () => {
      const { outcome, fault, areUntouched, reads } = await pullFrom(lie);
      expect(outcome.fault).toEqual(fault);
      expect(fault?.kind).toBe("protocol");
      expect(fault?.why).toContain(words);
      expect(outcome.results.every((result) => result?.kind !== "came")).toBe(true);
      expect([areUntouched, reads]).toEqual([true, 0]);
    });
  }

  test("ends the connection if a window is invalid and the queue pair fails", async () => {
    const { outcome, fault, areUntouched } = await pullFrom(({ id }, _, pair) => [
      { kind: "lent", id, rail: 0, window: WINDOW, body: encodeFrame(0, header(pair)) },
    ]);
    expect(outcome.fault?.kind).toBe("broken");
    expect(fault?.kind).toBe("broken");
    expect(areUntouched).toBe(true);
  });

  test("returns a block of a pull that is over at once", async () => {
    await using pair = await PlainPair.make();
    const item = pair.serverHost.server.put(1, 10_000);
    const { promise, resolve } = Promise.withResolvers<RawRdma>();
    await using serverHost = await pair.rawServer(async (connection) => {
      await welcome(pair, connection);
      resolve(connection);
    });
    await using connection = await pair.connection(serverHost.port);
    const raw = await promise;
    const abort = new AbortController();
    const pulled = pullPlaces(connection, placesFor([item]), { signal: abort.signal });
    const { id } = await raw.hear("pull");
    abort.abort();
    expect((await pulled).fault?.kind).toBe("aborted");
    await raw.hear("cancel");
    raw.say({ kind: "lent", id, rail: 0, window: WINDOW, body: encodeFrame(0, header(pair)) });
    expect(await raw.hear("taken")).toEqual({ kind: "taken", id, index: 0 });
    raw.say({ kind: "lost", id, index: 0 }, { kind: "busy", id, retryAfterMs: 1 });
    raw.say({ kind: "end", id, fault: "broken", why: "" }, { kind: "ping", nonce: 5 });
    expect(await raw.hear("pong")).toEqual({ kind: "pong", nonce: 5 });
    expect([connection.fault, pair.fabric.reads]).toEqual([null, 0]);
  });
});
