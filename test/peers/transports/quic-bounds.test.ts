import { expect, test } from "bun:test";
import {
  type Credentials,
  type PeerRequest,
  type QuicLimits,
  QuicTransport,
} from "../../../src/peers/index.ts";
import { encodePreface, makeProof } from "../../../src/peers/transports/quic/index.ts";
import { encodeRequest, withLength } from "../../../src/peers/wire/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { NAMESPACE } from "../../support/region-server.ts";
import { Pair, type TransportMaker, tryDial } from "./contract-kit.ts";
import { RawClient } from "./quic-client.ts";

const FULL = 0x11;
const FILTER_BYTES = 4 * 2 ** 20;
const SUMMARY = { op: "summary", namespace: NAMESPACE, known: 0n } as const;
const HAS = { op: "has", namespace: NAMESPACE, blocks: [] } as const;
const FIND = { op: "find", names: [] } as const;

function makerWith(limits: Partial<QuicLimits>): TransportMaker {
  return { name: "quic", make: (parts) => new QuicTransport({ ...parts, limits }) };
}

function asked(credentials: Credentials, request: PeerRequest): Uint8Array {
  const { key, cluster, worker: client } = credentials;
  const proof = makeProof(key, { cluster, client: client, server: "server" as never });
  return Buffer.concat([encodePreface(proof, 0), withLength(encodeRequest(request))]);
}

describeNative("memory that a QUIC peer can occupy", () => {
  test("is one encoded answer until the peer reads", async () => {
    await using pair = await Pair.make(makerWith({}));
    const filter = new Uint8Array(FILTER_BYTES);
    let written = 0;
    pair.serverHost.server.onCall = ({ op }) => {
      if (op !== "summary") return null;
      return {
        ...{ op: "summary", version: 1n },
        get filter() {
          written++;
          return filter;
        },
      };
    };
    const own = pair.cluster.host("own");
    await using client = await RawClient.connect(pair.serverHost.endpoint.port, own);
    const summary = asked(own, SUMMARY);
    const first = (await client.say(summary)) as Uint8Array;
    expect(first.length).toBeGreaterThan(FILTER_BYTES);
    const looks = written;
    const streams = await Promise.all(
      Array.from({ length: 12 }, () => client.session.createBidirectionalStream()),
    );
    for (const { writer } of streams) {
      writer.writeSync(summary);
      writer.endSync();
    }
    await waitFor(() => pair.serverHost.server.asked === 13 && written > looks);
    // Short answers do not wait behind long ones.
    expect(await client.say(asked(own, HAS))).toBeInstanceOf(Uint8Array);
    expect(written).toBe(2 * looks);
    const answers = streams.map((stream) => client.exchange(stream, new Uint8Array(0), false));
    for (const answer of await Promise.all(answers)) expect(answer).toHaveLength(first.length);
    expect(written).toBe(13 * looks);
  });

  test("is freed for the next request when one is cancelled in the middle", async () => {
    await using pair = await Pair.make(makerWith({}));
    const filter = new Uint8Array(FILTER_BYTES);
    const { server } = pair.serverHost;
    server.onCall = () => ({ op: "summary", version: 1n, filter });
    const own = pair.cluster.host("own");
    await using client = await RawClient.connect(pair.serverHost.endpoint.port, own);
    await client.session.opened;
    const summary = asked(own, SUMMARY);
    for (let turn = 1; turn <= 4; turn++) {
      const stream = await client.session.createBidirectionalStream();
      stream.closed.catch(() => {});
      stream.writer.writeSync(summary);
      stream.writer.endSync();
      await waitFor(() => server.asked === turn);
      stream.destroy();
    }
    const last = (await client.say(summary)) as Uint8Array;
    expect(last.length).toBeGreaterThan(FILTER_BYTES);
  });

  test("is bounded per worker, and no worker can use up another's connections", async () => {
    await using pair = await Pair.make(makerWith({ workerLinksMax: 2 }));
    const [own, other] = [pair.cluster.host("own"), pair.cluster.host("other")];
    const { port } = pair.serverHost.endpoint;
    // Another host's certificate behind its own does not count.
    const chain = { certificates: other.certificates + own.certificates };
    await using liar = await RawClient.connect(port, other, chain);
    await liar.session.opened;
    const clients = await Promise.all([1, 2, 3].map(() => RawClient.connect(port, own)));
    for (const client of clients.slice(0, 2)) {
      expect(await client.say(asked(own, FIND))).toBeInstanceOf(Uint8Array);
    }
    await clients[2]!.say(asked(own, FIND)).catch(() => {});
    expect(await clients[2]!.ended).toBe(FULL);
    expect(pair.serverHost.log.map(({ fields }) => fields.why)).toContain(
      "connection limit reached: own has 2 connections",
    );
    const dialled = await tryDial(pair.client, pair.serverHost.endpoint, "server");
    if (!dialled.ok) throw new Error(dialled.fault.why);
    await using connection = dialled.connection;
    expect((await connection.call(FIND, { deadlineMs: 5_000 })).ok).toBe(true);
    await clients[0]![Symbol.asyncDispose]();
    await waitFor(async () => {
      await using again = await RawClient.connect(port, own);
      return (await again.say(asked(own, FIND)).catch(() => 0)) instanceof Uint8Array;
    });
    await clients[1]![Symbol.asyncDispose]();
  });
});
