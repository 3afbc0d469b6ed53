import { expect, test } from "bun:test";
import type { PullItem } from "../../../src/peers/index.ts";
import type { ControlMessage } from "../../../src/peers/transports/stream/index.ts";
import { encodeAnswer, encodeFrame, encodeRefusal } from "../../../src/peers/wire/index.ts";
import { describeNative } from "../../support/index.ts";
import { placesFor, pullPlaces } from "./contract-kit.ts";
import { RawServer, type RawStream } from "./raw-stream.ts";
import { StreamPair } from "./stream-kit.ts";

type Heard<Kind> = Extract<ControlMessage, { kind: Kind }>;

const SESSION = {
  id: new Uint8Array(16).fill(1),
  secret: new Uint8Array(32).fill(2),
  cipher: "aegis-128l",
  lanes: 1,
} as const;

/** Sends a server's welcome, and accepts the client's lanes. */
async function welcome(pair: StreamPair, connection: RawStream): Promise<void> {
  await connection.hear("hello");
  const lanes = pair.network.open(pair.serverHost.region);
  const port = lanes.listen("127.0.0.1", 0);
  void lanes.expect(SESSION, 1_000);
  connection.say({ kind: "welcome", version: 1, port, requests: 8, session: SESSION });
}

/** Dials a server that behaves well until a pull, which it answers with `answer`. */
async function pullFrom(
  answer: (pull: Heard<"pull">, item: PullItem, pair: StreamPair) => readonly ControlMessage[],
) {
  await using pair = await StreamPair.make({}, { limits: { stallMs: 1_000 } });
  const item = pair.serverHost.server.put(1, 10_000);
  await using serverHost = await RawServer.listen(
    pair.cluster.host("server"),
    async (connection) => {
      await welcome(pair, connection);
      connection.say(...answer(await connection.hear("pull"), item, pair));
    },
  );
  await using connection = await pair.connection(serverHost.port);
  const places = placesFor([item, { ...item, bytesMax: 20_000 }]);
  const outcome = await pullPlaces(connection, places);
  return { outcome, fault: connection.fault };
}

describeNative("a stream client", () => {
  test("ends the dial after an invalid answer to its hello", async () => {
    await using pair = await StreamPair.make();
    const welcomeOf = (more: object): ControlMessage => {
      const session = { ...SESSION, ...more };
      return { kind: "welcome", version: 1, port: 1, requests: 8, session };
    };
    const answers: Record<string, ControlMessage> = {
      "something that was not offered": welcomeOf({ cipher: "none" }),
      "was not offered": welcomeOf({ lanes: 3 }),
      "expected a welcome": { kind: "pong", nonce: 0 },
      "lane set-up": welcomeOf({}),
      "too full": { kind: "bye", fault: "refused", why: "too full" },
    };
    for (const [words, answer] of Object.entries(answers)) {
      await using serverHost = await RawServer.listen(
        pair.cluster.host("server"),
        async (connection) => {
          await connection.hear("hello");
          connection.say(answer);
        },
      );
      const dialled = await pair.dial(serverHost.port);
      expect(dialled.ok).toBe(false);
      if (!dialled.ok) expect(dialled.fault.why).toContain(words);
    }
  });

  test.each(["aborted", "closed"] as const)(
    "does not believe a server that reports a fault of the client: %s",
    async (fault) => {
      await using pair = await StreamPair.make();
      await using serverHost = await RawServer.listen(
        pair.cluster.host("server"),
        async (connection) => {
          await connection.hear("hello");
          connection.say({ kind: "bye", fault, why: "of yours" });
        },
      );
      expect(await pair.dial(serverHost.port)).toEqual({
        ok: false,
        fault: { kind: "broken", why: "peer reported: of yours" },
      });
      const { outcome } = await pullFrom(({ id }) => [{ kind: "end", id, fault, why: "of yours" }]);
      expect(outcome.fault).toEqual({ kind: "broken", why: "peer reported: of yours" });
    },
  );

  test("can abort a dial while the server does not answer the hello", async () => {
    await using pair = await StreamPair.make();
    await using serverHost = await RawServer.listen(pair.cluster.host("server"), () => {});
    const abort = new AbortController();
    const target = { host: "127.0.0.1", port: serverHost.port, worker: "server" as never };
    const dialled = pair.client.transport.dial(target, abort.signal);
    setTimeout(() => abort.abort(), 50);
    expect(await dialled).toMatchObject({ ok: false, fault: { kind: "aborted" } });
  });

  const header = (pair: StreamPair) => pair.serverHost.server.header(1);
  const LIES: Record<string, Parameters<typeof pullFrom>[0]> = {
    "before its place": ({ id }, _, pair) => [
      { kind: "part", id, sent: true, body: encodeFrame(1, header(pair)) },
    ],
    "for a refused block": ({ id }) => [
      { kind: "part", id, sent: true, body: encodeRefusal(0, { kind: "absent" }) },
    ],
    "frame address": ({ id }, _, pair) => {
      const body = encodeFrame(0, { ...header(pair), layer: 4 });
      return [{ kind: "part", id, sent: true, body }];
    },
    "second answer": ({ id }) => {
      const body = encodeRefusal(0, { kind: "absent" });
      return [1, 2].map(() => ({ kind: "part", id, sent: false, body }) as const);
    },
    "lost block": ({ id }) => [{ kind: "lost", id, index: 0 }],
    "never sent": ({ id }) => [
      { kind: "answer", id: id + 5, body: encodeAnswer({ op: "refused", why: "" }) },
    ],
    unsupported: ({ id }) => [{ kind: "part", id, sent: false, body: new Uint8Array(9) }],
    "on a client connection": () => [{ kind: "cancel", id: 0 }],
    "an item that was not": ({ id }) => [
      { kind: "part", id, sent: false, body: encodeRefusal(2, { kind: "absent" }) },
    ],
  };
  for (const [words, lie] of Object.entries(LIES)) {
    test(`ends pull and connection, and receives nothing, after: ${words}`, async () => {
      const { outcome, fault } = await pullFrom(lie);
      expect(outcome.fault).toEqual(fault);
      expect(fault?.kind).toBe("protocol");
      expect(fault?.why).toContain(words);
      expect(outcome.results.every((result) => result?.kind !== "came")).toBe(true);
    });
  }

  test("stalls if a header's payload never arrives, and keeps the connection", async () => {
    const { outcome, fault } = await pullFrom(({ id }, _, pair) => [
      { kind: "part", id, sent: true, body: encodeFrame(0, header(pair)) },
    ]);
    expect(outcome.fault?.kind).toBe("stalled");
    expect(fault).toBeNull();
  });

  test("ends the connection of a silent server with a reason", async () => {
    await using pair = await StreamPair.make({}, { limits: { pingMs: 50, silentMs: 300 } });
    await using serverHost = await RawServer.listen(pair.cluster.host("server"), (connection) =>
      welcome(pair, connection),
    );
    await using connection = await pair.connection(serverHost.port);
    const ended = await connection.ended;
    expect(ended).toEqual({ kind: "stalled", why: "no data from the peer" });
    expect(await pullPlaces(connection, [])).toMatchObject({ fault: null });
    const called = await connection.call({ op: "find", names: [] }, { deadlineMs: 1_000 });
    expect(called).toEqual({ ok: false, fault: ended });
  });

  test("ignores messages for a pull that is over", async () => {
    await using pair = await StreamPair.make();
    const item = pair.serverHost.server.put(1, 10_000);
    const { promise, resolve } = Promise.withResolvers<RawStream>();
    await using serverHost = await RawServer.listen(
      pair.cluster.host("server"),
      async (connection) => {
        await welcome(pair, connection);
        resolve(connection);
      },
    );
    await using connection = await pair.connection(serverHost.port);
    const raw = await promise;
    const abort = new AbortController();
    const pulled = pullPlaces(connection, placesFor([item]), { signal: abort.signal });
    const { id } = await raw.hear("pull");
    abort.abort();
    expect((await pulled).fault?.kind).toBe("aborted");
    await raw.hear("cancel");
    raw.say({ kind: "part", id, sent: true, body: encodeFrame(0, header(pair)) });
    raw.say({ kind: "lost", id, index: 0 }, { kind: "busy", id, retryAfterMs: 1 });
    raw.say({ kind: "end", id, fault: "broken", why: "" }, { kind: "ping", nonce: 5 });
    expect(await raw.hear("pong")).toEqual({ kind: "pong", nonce: 5 });
    expect(connection.fault).toBeNull();
  });
});
