import { afterAll, beforeEach, expect, test } from "bun:test";
import { systemClock } from "../../../src/core/index.ts";
import { loadNative, openRdma, type Rdma } from "../../../src/native/index.ts";
import type { Endpoint, PeerConnection } from "../../../src/peers/index.ts";
import { type RdmaLimits, RdmaTransport } from "../../../src/peers/index.ts";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { RegionServer } from "../../support/region-server.ts";
import {
  chalk,
  LIMITS,
  type LogLine,
  MIB,
  placesFor,
  pullPlaces,
  regionOf,
  untouchedPlace,
} from "./contract-kit.ts";
import {
  LINK_SETTINGS,
  meetIn,
  planVerbs,
  rdmaLimitsOf,
  standInVerbs,
  verbsOptions,
} from "./rdma-kit.ts";

/** Only the stand-in's devices fail on demand. */
const describeStandIn = process.env.HEARTH_TEST_VERBS === undefined ? describeNative : () => {};

interface Side {
  readonly limits?: Partial<RdmaLimits>;
  readonly rails?: number;
  readonly windowSpans?: number;
}

class RdmaHost implements AsyncDisposable {
  readonly transport: RdmaTransport;
  readonly server: RegionServer;
  readonly log: LogLine[] = [];
  readonly region;
  #rdma: Rdma | null = null;

  constructor(
    trust: ConstructorParameters<typeof RdmaTransport>[0]["trust"],
    at: number,
    side: Side,
  ) {
    const { limits, rails = 1, ...more } = side;
    this.region = regionOf(at);
    this.server = new RegionServer(this.region);
    this.transport = new RdmaTransport({
      ...{ trust, clock: systemClock, rails, settings: LINK_SETTINGS },
      log: (level, text, fields) => void this.log.push({ level, text, fields }),
      rdmaOf: (region) => {
        this.#rdma = openRdma(loadNative(), verbsOptions(region, more));
        return this.#rdma;
      },
      limits: { ...rdmaLimitsOf({ ...LIMITS, progressMs: 600 }), ...limits },
    });
  }

  async listen(): Promise<Endpoint> {
    await this.transport.register(this.region);
    return await this.transport.listen({ host: "127.0.0.1", port: 0 }, this.server);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.transport[Symbol.asyncDispose]();
    await this.#rdma?.[Symbol.asyncDispose]();
  }
}

/** A server and a client on one stand-in. Closes everything when it is disposed. */
class RdmaPair implements AsyncDisposable {
  readonly serverHost: RdmaHost;
  readonly client: RdmaHost;
  #endpoint: Endpoint = { host: "127.0.0.1", port: 0 };

  private constructor(serverHost: Side, client: Side) {
    const cluster = makeCluster();
    this.serverHost = new RdmaHost(cluster.trust("server"), 0, serverHost);
    this.client = new RdmaHost(cluster.trust("client"), 1, client);
  }

  static async make(plan: string, serverHost: Side = {}, client: Side = {}): Promise<RdmaPair> {
    planVerbs(plan);
    const pair = new RdmaPair(serverHost, client);
    pair.#endpoint = await pair.serverHost.listen();
    await pair.client.transport.register(pair.client.region);
    return pair;
  }

  dial() {
    const target = { ...this.#endpoint, worker: "server" as never };
    return this.client.transport.dial(target, new AbortController().signal);
  }

  async connection(): Promise<PeerConnection> {
    const dialled = await this.dial();
    if (!dialled.ok) throw new Error(`${dialled.fault.kind}: ${dialled.fault.why}`);
    return dialled.connection;
  }

  /** Blocks of the server, and places filled with the canary. */
  places(count: number, bytes: number) {
    const items = Array.from({ length: count }, (_, at) =>
      this.serverHost.server.put(at + 1, bytes),
    );
    const places = placesFor(items);
    chalk(this.client.region, places);
    return places;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client[Symbol.asyncDispose]();
    await this.serverHost[Symbol.asyncDispose]();
    const { lent, serving, releasedTwice } = this.serverHost.server;
    expect({ lent, serving, releasedTwice }).toEqual({ lent: 0, serving: 0, releasedTwice: 0 });
    const counters = Object.entries(standInVerbs()!.counters());
    expect(counters.filter(([name, count]) => name.startsWith("open.") && count > 0)).toEqual([]);
  }
}

describeStandIn("an RDMA transport, when", () => {
  afterAll(meetIn(tempDir()));
  beforeEach(() => planVerbs(""));

  test("a read fails: the link ends on both sides, and another one works", async () => {
    await using pair = await RdmaPair.make("read=10@3");
    const { server } = pair.serverHost;
    const places = pair.places(6, 100_000);
    const connection = await pair.connection();
    const { fault, results } = await pullPlaces(connection, places);
    expect(fault).toMatchObject({ kind: "broken" });
    expect((await connection.ended).kind).toBe("broken");
    for (const [index, result] of results.entries()) {
      const { offset } = places[index]!;
      if (result?.kind !== "came") continue;
      expect(pair.client.region.firstWrong(offset, 100_000, BigInt(index + 1))).toBeNull();
    }
    expect(results.filter((result) => result?.kind === "came").length).toBeLessThan(6);
    await waitFor(() => server.lent === 0 && pair.serverHost.transport.inboundConnections === 0);
    await using another = await pair.connection();
    expect((await pullPlaces(another, places)).fault).toBeNull();
  });

  test("a read hangs: the pull stalls, the link ends, and nothing is written after", async () => {
    await using pair = await RdmaPair.make("hang@3");
    const places = pair.places(6, 100_000);
    const connection = await pair.connection();
    const { fault } = await pullPlaces(connection, places);
    expect(fault).toMatchObject({ kind: "stalled" });
    expect(await connection.ended).toMatchObject({ kind: "stalled" });
    chalk(pair.client.region, places);
    standInVerbs()!.configure("+release");
    await waitFor(() => pair.serverHost.server.lent === 0);
    await using another = await pair.connection();
    expect((await pullPlaces(another, places.slice(0, 1))).fault).toBeNull();
    for (const place of places.slice(1)) {
      expect(untouchedPlace(pair.client.region, place)).toBe(true);
    }
  });

  test("a bit is flipped on the way: the checksum is of what lies here", async () => {
    await using pair = await RdmaPair.make("flip@2");
    const { server } = pair.serverHost;
    const places = pair.places(3, 100_000);
    await using connection = await pair.connection();
    const { fault, results } = await pullPlaces(connection, places);
    expect(fault).toBeNull();
    const wrong = results.filter((result, index) => {
      if (result?.kind !== "came") throw new Error("all of them come");
      const { offset } = places[index]!;
      expect(result.checksum).toBe(pair.client.region.checksum(offset, 100_000));
      return result.checksum !== server.header(index + 1).checksum;
    });
    expect(wrong).toHaveLength(1);
  });

  test("a loan ends while it is read: the read comes to nothing, the block is let go", async () => {
    const side = { limits: { lentMs: 60 } };
    await using pair = await RdmaPair.make("delay=300", side);
    const { server, region } = pair.serverHost;
    server.onServe = (served) => {
      if (served.kind !== "block") return served;
      const release = () => {
        served.release();
        region.fill(served.offset, served.header.bytes, 99n);
      };
      return { ...served, release };
    };
    const places = pair.places(1, 4 * MIB);
    const connection = await pair.connection();
    const { fault, results } = await pullPlaces(connection, places);
    // Either the loss was reported first, or the read failed first.
    if (fault === null) expect(results[0]).toMatchObject({ kind: "busy" });
    else expect(fault.kind).toBe("broken");
    expect(server.released).toBe(1);
    await connection[Symbol.asyncDispose]();
  });

  test("the port goes down: the connection ends, and no dial succeeds without a port", async () => {
    await using pair = await RdmaPair.make("");
    const places = pair.places(2, 100_000);
    const connection = await pair.connection();
    expect((await pullPlaces(connection, places)).fault).toBeNull();
    standInVerbs()!.configure("+port=down");
    expect(await connection.ended).toMatchObject({ kind: "broken" });
    await waitFor(() => pair.serverHost.transport.inboundConnections === 0);
    await waitFor(async () => {
      const dialled = await pair.dial();
      return !dialled.ok && dialled.fault.why.includes("no RDMA port");
    });
    standInVerbs()!.configure("+port=up");
    await waitFor(async () => {
      const dialled = await pair.dial();
      return dialled.ok && (await pullPlaces(dialled.connection, places)).fault === null;
    });
  });

  test("there are two rails: a connection uses both, and ends with either of them", async () => {
    await using pair = await RdmaPair.make("devices=2", { rails: 2 }, { rails: 8 });
    const places = pair.places(6, 100_000);
    const connection = await pair.connection();
    const before = standInVerbs()!.counters();
    expect(before["open.qps"]).toBe(4);
    const { fault } = await pullPlaces(connection, places);
    expect(fault).toBeNull();
    for (const [index, { offset }] of places.entries()) {
      expect(pair.client.region.firstWrong(offset, 100_000, BigInt(index + 1))).toBeNull();
    }
    standInVerbs()!.configure("+port=down/1");
    expect(await connection.ended).toMatchObject({ kind: "broken" });
    await using another = await pair.connection();
    await waitFor(() => standInVerbs()!.counters()["open.qps"] === 2);
    expect((await pullPlaces(another, places)).fault).toBeNull();
  });

  test("the window is full: blocks are busy or wait, the link goes on", async () => {
    await using pair = await RdmaPair.make("", { windowSpans: 2 });
    const places = pair.places(24, 50_000);
    await using connection = await pair.connection();
    const { fault, results } = await pullPlaces(connection, places);
    expect(fault).toBeNull();
    const kinds = results.map((result) => result!.kind);
    expect(new Set(kinds)).toEqual(new Set(["came", "busy"]));
    const again = places.slice(0, 1);
    await waitFor(async () => (await pullPlaces(connection, again)).results[0]?.kind === "came");
  });

  test("memory cannot be registered: the block is busy, which is logged", async () => {
    await using pair = await RdmaPair.make("");
    const places = pair.places(2, 50_000);
    await using connection = await pair.connection();
    expect((await pullPlaces(connection, places)).fault).toBeNull();
    standInVerbs()!.configure("+reg=12@1+");
    const { fault, results } = await pullPlaces(connection, places.slice(0, 1));
    expect(fault).toBeNull();
    expect(results[0]).toMatchObject({ kind: "busy" });
    expect(pair.serverHost.log.some(({ text }) => text.includes("exposing a block"))).toBe(true);
  });

  test("a queue pair cannot be made: the dial is refused in words, on both sides", async () => {
    await using pair = await RdmaPair.make("ibv_create_qp=12@1;ibv_create_qp=12@3");
    const first = await pair.dial();
    expect(first).toMatchObject({ ok: false, fault: { kind: "refused" } });
    expect(pair.serverHost.log.some(({ text }) => text.includes("creating queue pairs"))).toBe(
      true,
    );
    // The client's queue pair existed already.
    expect(await pair.dial()).toMatchObject({ ok: false, fault: { kind: "broken" } });
    expect((await pair.dial()).ok).toBe(true);
    await waitFor(() => pair.serverHost.transport.inboundConnections === 1);
  });

  test("there is no device: it reports why, and nothing else fails", async () => {
    planVerbs("no-device");
    const host = new RdmaHost(makeCluster().trust("server"), 0, {});
    await using _ = host;
    await host.transport.register(host.region);
    expect(host.transport.unsupported).toContain("no RDMA device");
    const target = { host: "127.0.0.1", port: 1, worker: "other" as never };
    const dialled = await host.transport.dial(target, new AbortController().signal);
    expect(dialled).toMatchObject({ ok: false, fault: { kind: "unsupported" } });
    const listening = host.transport.listen({ host: "127.0.0.1", port: 0 }, host.server);
    expect(listening).rejects.toMatchObject({ code: "UNSUPPORTED" });
    await listening.catch(() => undefined);
  });
});
