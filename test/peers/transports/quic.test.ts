import { expect, test } from "bun:test";
import { join } from "node:path";
import { HearthError } from "../../../src/core/index.ts";
import { type Credentials, QuicTransport } from "../../../src/peers/index.ts";
import { encodePreface, makeProof } from "../../../src/peers/transports/quic/index.ts";
import { encodeRequest, REQUEST_BYTES_MAX, withLength } from "../../../src/peers/wire/index.ts";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { NAMESPACE } from "../../support/region-server.ts";
import { transportContract } from "./contract.ts";
import {
  dial,
  Host,
  LIMITS,
  Pair,
  placesFor,
  pullPlaces,
  regionOf,
  type TransportMaker,
} from "./contract-kit.ts";
import { RawClient, type RawOptions } from "./quic-client.ts";
import { maker } from "./quic-maker.ts";

await transportContract(join(import.meta.dir, "quic-maker.ts"));

const REFUSED = 0x10;
const PROTOCOL = 0x12;
const STALLED = 0x13;
const FIND = withLength(encodeRequest({ op: "find", names: [] }));

function prefaceOf(credentials: Credentials, serverHost = "server", client?: string): Uint8Array {
  const { key, cluster, worker } = credentials;
  const speakers = { cluster, client: client ?? worker, server: serverHost };
  return encodePreface(makeProof(key, speakers as never), 0);
}

function bytes(...parts: readonly (Uint8Array | readonly number[])[]): Uint8Array {
  return Buffer.concat(parts.map((part) => Uint8Array.from(part)));
}

function u32(value: number): Uint8Array {
  return new Uint8Array(new Uint32Array([value]).buffer);
}

describeNative("listening by QUIC", () => {
  test("at a port in use is refused with a message and the fix", async () => {
    await using pair = await Pair.make(maker);
    await using other = new Host(maker, pair.cluster.trust("other"), regionOf(2), LIMITS);
    await other.transport.register(other.region);
    const { endpoint } = pair.serverHost;
    const thrown = await other.transport.listen(endpoint, other.server).catch((error) => error);
    expect(thrown).toBeInstanceOf(HearthError);
    expect(thrown.code).toBe("CONFIG_INVALID");
    expect(thrown.text).toContain(`127.0.0.1:${endpoint.port}`);
    expect(thrown.text).toContain("Bind failure");
    expect(thrown.text).toContain("listen_quic");
    // Its port and connections are unchanged.
    await using connection = await pair.connection();
    expect((await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 })).ok).toBe(true);
  });

  test("on addresses of both families accepts both", async () => {
    const cluster = makeCluster();
    await using serverHost = new Host(maker, cluster.trust("server"), regionOf(0), LIMITS);
    await using client = new Host(maker, cluster.trust("client"), regionOf(1), LIMITS);
    for (const host of [serverHost, client]) await host.transport.register(host.region);
    const { port } = await serverHost.transport.listen({ host: "::", port: 0 }, serverHost.server);
    for (const host of ["::1", "127.0.0.1", "localhost"]) {
      await using connection = await dial(client, { host, port }, "server");
      expect((await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 })).ok).toBe(
        true,
      );
    }
  });
});

describeNative("a QUIC client", () => {
  const connect = (pair: Pair, credentials: Credentials, options: RawOptions = {}) =>
    RawClient.connect(pair.serverHost.endpoint.port, credentials, options);

  test("is answered after it proved that it has its certificate's key", async () => {
    await using pair = await Pair.make(maker);
    const honest = pair.cluster.host("honest");
    await using client = await connect(pair, honest);
    const answer = await client.say(bytes(prefaceOf(honest), FIND));
    expect(answer).toBeInstanceOf(Uint8Array);
    expect(pair.serverHost.server.client).toBe("honest" as never);
    // One proof is valid for the whole connection.
    expect(await client.say(bytes(encodePreface(new Uint8Array(0), 9), FIND))).toEqual(answer);
  });

  test("is not taken for the host whose certificate it appends to its own", async () => {
    await using pair = await Pair.make(maker);
    const { server, log } = pair.serverHost;
    const own = pair.cluster.host("malicious");
    const { certificates: victim } = pair.cluster.host("victim");
    const chain = { certificates: own.certificates + victim };
    for (const claimed of ["malicious", "victim"]) {
      await using client = await connect(pair, own, chain);
      const said = await client.say(bytes(prefaceOf(own, "server", claimed), FIND));
      expect(typeof said === "number" || said.length === 0).toBe(true);
      expect(await client.ended).toBe(REFUSED);
    }
    expect(server.asked).toBe(0);
    const whys = log.map(({ fields }) => fields.why);
    expect(whys).toContain("it does not prove that it is victim");
  });

  test("with a proof for another server, of another key, or none, is refused", async () => {
    await using pair = await Pair.make(maker);
    const own = pair.cluster.host("own");
    const other = { ...own, key: pair.cluster.host("own").key };
    const nothing = encodePreface(new Uint8Array(0), 0);
    for (const preface of [prefaceOf(own, "elsewhere"), prefaceOf(other), nothing]) {
      await using client = await connect(pair, own);
      await client.say(bytes(preface, FIND));
      expect(await client.ended).toBe(REFUSED);
    }
    expect(pair.serverHost.server.asked).toBe(0);
  });

  test("that sends an invalid message has its stream reset, and nothing else", async () => {
    await using pair = await Pair.make(maker);
    const own = pair.cluster.host("own");
    const preface = prefaceOf(own);
    await using client = await connect(pair, own);
    const nonsense: Record<string, Uint8Array> = {
      nothing: new Uint8Array(0),
      "half a preface": preface.subarray(0, 20),
      "a proof that is too long": bytes([255, 255, 0, 0]),
      "padding that is too long": bytes([0, 0, 255, 255]),
      "no request": preface,
      "half a request": bytes(preface, FIND.subarray(0, 9)),
      "a length of nothing": bytes(preface, u32(0)),
      "a length beyond the cap": bytes(preface, u32(REQUEST_BYTES_MAX + 1)),
      "a request that is none": bytes(preface, u32(8), [1, 2, 3, 4, 5, 6, 7, 8]),
      "more than a request": bytes(preface, FIND, [1]),
    };
    for (const [what, said] of Object.entries(nonsense)) {
      expect([what, await client.say(said)]).toEqual([what, PROTOCOL]);
    }
    expect(pair.serverHost.server.asked).toBe(0);
    expect(await client.say(bytes(preface, FIND))).toBeInstanceOf(Uint8Array);
  });

  test("that sends little on a stream times out, and others are served meanwhile", async () => {
    await using pair = await Pair.make(maker, { progressMs: 400 });
    const own = pair.cluster.host("own");
    await using client = await connect(pair, own);
    await client.session.opened;
    const preface = prefaceOf(own);
    const slow = Array.from({ length: 100 }, (_, index) =>
      client.say(preface.subarray(0, 1 + (index % 60)), { end: false }),
    );
    await using connection = await pair.connection();
    const places = placesFor([pair.serverHost.server.put(1, 100_000)]);
    for (let i = 0; i < 5; i++) expect((await pullPlaces(connection, places)).fault).toBeNull();
    // 32 requests fit at once; the others run when those have ended.
    for (const code of await Promise.all(slow)) expect(code).toBe(STALLED);
    expect(pair.serverHost.server.asked).toBe(5);
  });

  test("that exceeds the server's request limit gets busy", async () => {
    const make: TransportMaker["make"] = (parts) =>
      new QuicTransport({ ...parts, limits: { requestsMax: 1, retryAfterMs: 70 } });
    await using pair = await Pair.make({ name: "quic", make });
    const { server } = pair.serverHost;
    const places = placesFor([1, 2].map((seed) => server.put(seed, 1_000)));
    const gate = Promise.withResolvers<void>();
    server.onServe = async (served) => {
      await gate.promise;
      return served;
    };
    await using connection = await pair.connection();
    const first = pullPlaces(connection, places);
    await waitFor(() => server.serving === 1);
    const busy = { kind: "busy", retryAfterMs: 70 };
    const second = await pullPlaces(connection, places);
    expect(second).toMatchObject({ fault: null, results: [busy, busy] });
    const called = await connection.call({ op: "find", names: [] }, { deadlineMs: 5_000 });
    expect(called).toEqual({ ok: true, answer: { op: "busy", retryAfterMs: 70 } });
    gate.resolve();
    expect((await first).results.map((result) => result?.kind)).toEqual(["came", "came"]);
    expect((await pullPlaces(connection, places)).results[0]).toMatchObject({ kind: "came" });
  });

  test("that waits for a free stream does not count as stalled", async () => {
    await using pair = await Pair.make(maker, { requestsMax: 1, progressMs: 300 });
    const { server } = pair.serverHost;
    const places = placesFor(Array.from({ length: 12 }, (_, index) => server.put(index + 1, 100)));
    server.onServe = async (served) => {
      await Bun.sleep(60);
      return served;
    };
    await using connection = await pair.connection();
    const outcomes = await Promise.all([
      pullPlaces(connection, places),
      pullPlaces(connection, places),
    ]);
    expect(outcomes.map(({ fault }) => fault)).toEqual([null, null]);
    expect(server.servingMost).toBe(1);
  });

  test("sending anything but a pull early is refused: it may be a replay", async () => {
    await using pair = await Pair.make(maker);
    const { server } = pair.serverHost;
    const own = pair.cluster.host("own");
    const first = await connect(pair, own);
    expect(await first.say(bytes(prefaceOf(own), FIND))).toBeInstanceOf(Uint8Array);
    await waitFor(() => first.ticket);
    await first[Symbol.asyncDispose]();
    const { asked } = server;
    const ticket = { ticket: first.ticket! };
    const again = async (request: Uint8Array) => {
      await using client = await connect(pair, own, ticket);
      const said = await client.say(bytes(prefaceOf(own), request));
      expect((await client.session.opened).earlyDataAccepted).toBe(true);
      return said;
    };
    expect(await again(FIND)).toBe(PROTOCOL);
    expect(server.asked).toBe(asked);
    const item = { ...server.put(1, 5_000) };
    const pull = { op: "pull", namespace: NAMESPACE, items: [item], deadlineMs: 5_000 } as const;
    const came = await again(withLength(encodeRequest(pull)));
    expect((came as Uint8Array).length).toBeGreaterThan(5_000);
  });
});
