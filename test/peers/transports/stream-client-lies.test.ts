import { expect, test } from "bun:test";
import { connect as connectTcp } from "node:net";
import type { ControlMessage } from "../../../src/peers/transports/stream/index.ts";
import { encodeRequest } from "../../../src/peers/wire/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { RawStream } from "./raw-stream.ts";
import { pullBody, StreamPair } from "./stream-kit.ts";

const FIND = encodeRequest({ op: "find", names: [] });
const HELLO: ControlMessage = { kind: "hello", version: 1, lanes: 1, ciphers: ["aegis-128l"] };

describeNative("a stream server", () => {
  test("ends a connection after an invalid message, and reports the reason", async () => {
    await using pair = await StreamPair.make();
    const item = pair.serverHost.server.put(1, 1_000);
    const nonsense: Record<string, readonly ControlMessage[]> = {
      "before the hello": [{ kind: "call", id: 0, body: FIND }],
      "second hello": [HELLO, HELLO],
      "as a pull": [HELLO, { kind: "pull", id: 0, transfer: 0, announced: 0, body: FIND }],
      "as a call": [HELLO, { kind: "call", id: 0, body: pullBody([item]) }],
      "on a server connection": [HELLO, { kind: "answer", id: 0, body: FIND }],
      "cut off": [HELLO, { kind: "call", id: 0, body: FIND.subarray(0, -1) }],
      "invalid announcement": [
        HELLO,
        { kind: "pull", id: 0, transfer: 0, announced: 2, body: pullBody([item]) },
      ],
    };
    for (const [words, messages] of Object.entries(nonsense)) {
      await using raw = await pair.raw();
      raw.say(...messages);
      const bye = await raw.hear("bye");
      expect(bye.fault).toBe("protocol");
      expect(bye.why).toContain(words);
      await raw.over();
    }
    expect(pair.serverHost.server.asked).toBe(0);
    await waitFor(() => pair.serverHost.transport.inboundConnections === 0);
  });

  test("refuses transfer numbers above 32 bits", async () => {
    await using pair = await StreamPair.make();
    const item = pair.serverHost.server.put(1, 1_000);
    await using raw = await pair.greeted();
    const transfer = 0xffff_ffff;
    raw.say({ kind: "pull", id: 0, transfer, announced: 1, body: pullBody([item]) });
    const before = transfer - 1;
    raw.say({ kind: "pull", id: 1, transfer: before, announced: 1, body: pullBody([item, item]) });
    expect((await raw.hear("part")).sent).toBe(true);
    raw.say({ kind: "pull", id: 2, transfer, announced: 2, body: pullBody([item, item]) });
    expect((await raw.hear("bye")).why).toContain("invalid announcement");
  });

  test("ends a connection at the length of an oversized message, before it arrives", async () => {
    await using pair = await StreamPair.make();
    await using raw = await pair.greeted();
    raw.socket.write(Uint8Array.of(0xff, 0xff, 0xff, 0x7f, 3));
    expect((await raw.hear("bye")).fault).toBe("protocol");
  });

  test("ends a connection after go for a block that was not waiting", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const item = { ...server.put(1, 1_000), bytesMax: 2_000 };
    await using raw = await pair.greeted();
    const { promise: gate, resolve: open } = Promise.withResolvers<void>();
    server.onServe = async (served) => {
      await gate;
      return served;
    };
    raw.say({ kind: "pull", id: 0, transfer: 0, announced: 1, body: pullBody([item]) });
    await waitFor(() => server.serving === 1);
    raw.say({ kind: "go", id: 0, index: 0, transfer: 9 });
    expect((await raw.hear("bye")).why).toContain("go without a waiting block");
    open();
    await waitFor(() => server.serving === 0 && server.lent === 0);
  });

  test("keeps a block without go until the deadline, and no longer", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const item = { ...server.put(1, 1_000), bytesMax: 2_000 };
    await using raw = await pair.greeted();
    raw.say({ kind: "pull", id: 0, transfer: 0, announced: 1, body: pullBody([item], 200) });
    expect((await raw.hear("part")).sent).toBe(false);
    expect(server.lent).toBe(1);
    expect(await raw.hear("lost")).toMatchObject({ id: 0, index: 0 });
    await waitFor(() => server.lent === 0 && server.serving === 0);
    expect(raw.heard.some(({ kind }) => kind === "bye")).toBe(false);
  });

  test("releases waiting blocks after a cancel, and keeps the connection", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const item = { ...server.put(1, 1_000), bytesMax: 2_000 };
    await using raw = await pair.greeted();
    for (let id = 0; id < 50; id++) {
      raw.say({ kind: "pull", id, transfer: id, announced: 1, body: pullBody([item]) });
      raw.say({ kind: "cancel", id }, { kind: "cancel", id }, { kind: "cancel", id: 7_000 });
    }
    raw.say({ kind: "call", id: 99, body: FIND });
    await raw.hear("answer");
    await waitFor(() => server.lent === 0 && server.serving === 0);
    expect(raw.isClosed).toBe(false);
  });

  test("in a flood of pulls few are served, and all others are answered with retry later", async () => {
    const limits = { connectionRequestsMax: 4, requestsMax: 6, retryAfterMs: 77 };
    await using pair = await StreamPair.make({ limits });
    const { server } = pair.serverHost;
    const item = server.put(1, 1_000);
    server.onServe = (_, __, signal) =>
      new Promise((resolve) => signal.addEventListener("abort", () => resolve(undefined)));
    await using first = await pair.greeted();
    await using second = await pair.greeted();
    const flood = Array.from({ length: 500 }, (_, id) => id);
    for (const raw of [first, second]) {
      for (const id of flood) {
        raw.say({ kind: "pull", id, transfer: id, announced: 1, body: pullBody([item]) });
      }
      raw.say({ kind: "call", id: 1_000, body: FIND });
    }
    const busy = (raw: typeof first) => raw.heard.filter(({ kind }) => kind === "busy");
    await waitFor(() => busy(first).length === 496 && busy(second).length === 498);
    expect(busy(first)[0]).toMatchObject({ retryAfterMs: 77 });
    expect(server.servingMost).toBe(6);
    await Promise.all([first.hear("answer"), second.hear("answer")]);
    first.socket.destroy();
    second.socket.destroy();
    await waitFor(() => server.serving === 0 && pair.serverHost.transport.inboundConnections === 0);
  });

  test("stops reading from a client that does not read, and gives it up", async () => {
    const limits = { unreadBytesMax: 100_000, pingMs: 50, silentMs: 600 };
    await using pair = await StreamPair.make({ limits });
    const { server } = pair.serverHost;
    const filter = new Uint8Array(1_000_000);
    server.onCall = () => ({ op: "summary", version: 1n, filter });
    await using raw = await pair.greeted();
    raw.socket.pause();
    const summary = { op: "summary", namespace: new Uint8Array(32), known: 0n } as const;
    const body = encodeRequest(summary);
    for (let id = 0; id < 500; id++) raw.say({ kind: "call", id, body });
    await waitFor(() => pair.serverHost.transport.inboundConnections === 0);
    expect(server.asked).toBeLessThan(100);
    expect(
      pair.serverHost.log.some(({ fields }) => String(fields.why).includes("does not read")),
    ).toBe(true);
  });

  test("times out silence, an incomplete message, and lanes that do not connect", async () => {
    const limits = { pingMs: 50, silentMs: 300, setUpMs: 400 };
    await using pair = await StreamPair.make({ limits });
    await using silent = await pair.greeted();
    await using half = await pair.greeted();
    await using laneless = await pair.raw();
    laneless.say(HELLO);
    const chatter = setInterval(() => {
      half.socket.write(Uint8Array.of(0));
      laneless.say({ kind: "ping", nonce: 1 });
    }, 30);
    half.socket.write(Uint8Array.of(200, 0, 0, 0));
    await Promise.all([silent.over(), half.over(), laneless.over()]);
    clearInterval(chatter);
    const whys = pair.serverHost.log.map(({ fields }) => String(fields.why));
    for (const words of [
      "no data from the peer",
      "incomplete message",
      "lanes were not connected",
    ]) {
      expect(whys.some((why) => why.includes(words))).toBe(true);
    }
    await waitFor(() => pair.serverHost.transport.inboundConnections === 0);
  });

  test("does not encode answers that the client does not read", async () => {
    await using pair = await StreamPair.make();
    const filter = new Uint8Array(4 * 2 ** 20);
    let written = 0;
    pair.serverHost.server.onCall = () => ({
      ...{ op: "summary", version: 1n },
      get filter() {
        written++;
        return filter;
      },
    });
    await using raw = await pair.greeted();
    await raw.hear("welcome");
    const body = encodeRequest({ op: "summary", namespace: new Uint8Array(32), known: 0n });
    const answers = () => raw.heard.filter(({ kind }) => kind === "answer").length;
    raw.say({ kind: "call", id: 0, body });
    await waitFor(() => answers() === 1);
    const looks = written;
    raw.socket.pause();
    const calls = Array.from({ length: 32 }, (_, id) => ({ kind: "call", id, body }) as const);
    raw.say(...calls);
    await waitFor(() => pair.serverHost.server.asked === 33);
    await waitFor(() => written > looks);
    expect(written).toBeLessThan(8 * looks);
    raw.socket.resume();
    await waitFor(() => answers() === 33);
    expect(written).toBe(33 * looks);
  });

  test("bounds connections in the handshake, and times them out", async () => {
    const limits = { handshakesMax: 3, handshakeMs: 400 };
    await using pair = await StreamPair.make({ limits });
    const open = new Set<number>();
    const sockets = Array.from({ length: 10 }, (_, index) => {
      const socket = connectTcp(pair.serverHost.endpoint.port, "127.0.0.1");
      socket.on("error", () => {});
      socket.on("connect", () => {
        open.add(index);
        socket.write(Uint8Array.of(22, 3, 1));
      });
      socket.on("close", () => void open.delete(index));
      socket.resume();
      return socket;
    });
    await waitFor(() => open.size === 3);
    // Peers with a certificate are not kept out by connections in the handshake.
    await using fourth = await pair.connection();
    expect(fourth.fault).toBeNull();
    await waitFor(() => open.size === 0);
    for (const socket of sockets) socket.destroy();
    // Connections that completed the handshake do not count.
    const connections = [
      await pair.connection(),
      await pair.connection(),
      await pair.connection(),
      await pair.connection(),
    ];
    expect(connections.map(({ fault }) => fault)).toEqual([null, null, null, null]);
    for (const connection of connections) await connection[Symbol.asyncDispose]();
  });

  test("gives no session ticket: every connection presents its certificate", async () => {
    await using pair = await StreamPair.make();
    const tickets: Buffer[] = [];
    await using first = await pair.raw();
    first.socket.on("session", (ticket: Buffer) => void tickets.push(ticket));
    first.say(HELLO);
    await first.hear("welcome");
    expect(tickets).toEqual([]);
    const session = first.socket.getSession();
    expect(session).toBeDefined();
    const credentials = pair.cluster.host("raw-client");
    await using second = await RawStream.dial(pair.serverHost.endpoint, credentials, { session });
    expect(second.socket.isSessionReused()).toBe(false);
    second.say(HELLO);
    await second.hear("welcome");
  });

  test("refuses other versions of TLS and other protocols", async () => {
    await using pair = await StreamPair.make();
    const credentials = pair.cluster.host("raw-client");
    const old = { minVersion: "TLSv1.2", maxVersion: "TLSv1.2" } as const;
    const refused = RawStream.dial(pair.serverHost.endpoint, credentials, old);
    expect(refused).rejects.toThrow();
    await refused.catch(() => {});
    await using other = await RawStream.dial(pair.serverHost.endpoint, credentials, {
      ALPNProtocols: [],
    });
    other.say(HELLO);
    expect(await other.hear("bye")).toMatchObject({ fault: "refused" });
    await other.over();
    expect(pair.serverHost.transport.inboundConnections).toBe(0);
    expect(pair.serverHost.log.filter(({ level }) => level === "warn")).toHaveLength(2);
  });

  test("bounds the connections of one worker", async () => {
    await using pair = await StreamPair.make({ limits: { workerLinksMax: 2 } });
    await using _first = await pair.raw();
    await using _second = await pair.raw();
    await waitFor(() => pair.serverHost.transport.inboundConnections === 2);
    await using third = await pair.raw();
    expect(await third.hear("bye")).toMatchObject({ fault: "refused" });
    await using other = await pair.connection();
    expect(other.fault).toBeNull();
  });
});
