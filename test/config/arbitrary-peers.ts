import fc from "fast-check";
import type { Config } from "../../src/config/index.ts";
import type { WorkerId } from "../../src/core/index.ts";

type Peers = Config["peers"];

const MIB = 2 ** 20;
const word = <T extends string | number>(...words: T[]) => fc.constantFrom(...words);
const path = fc.stringMatching(/^[a-z]{1,20}$/).map((name) => `/${name}.pem`);
const duration = fc.integer({ min: 50, max: 60_000 });

const worker = fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_-]{0,9}$/) as fc.Arbitrary<WorkerId>;
const listed: fc.Arbitrary<NonNullable<Peers["peers"]>> = fc.uniqueArray(
  fc.record({
    worker,
    host: word("10.0.0.2", "fd00::3", "gpu-2.example", "127.0.0.1"),
    streamPort: fc.integer({ min: 1, max: 65_535 }),
    quicPort: fc.option(fc.integer({ min: 1, max: 65_535 })),
    rdmaPort: fc.option(fc.integer({ min: 1, max: 65_535 })),
  }),
  { selector: ({ worker }) => worker, minLength: 1, maxLength: 4 },
);

const places = fc
  .record({
    stream: fc.boolean(),
    quic: fc.boolean(),
    rdma: fc.boolean(),
    isHere: fc.boolean(),
    port: fc.nat(65_533),
    elsewhere: word("10.0.0.1", "gpu-1.example", "fd00::1"),
  })
  .map(({ stream, quic, rdma, isHere, port, elsewhere }) => {
    const host = isHere ? "127.0.0.1" : "0.0.0.0";
    const address = { host, port, loopback: isHere };
    return {
      listenStream: stream ? address : ("off" as const),
      listenQuic: quic ? address : ("off" as const),
      listenRdma: rdma ? { ...address, port: 0 } : ("off" as const),
      advertise: isHere ? "127.0.0.1" : elsewhere,
    };
  });

/** Sections [peers] of every shape, each a valid one. */
export const arbitraryPeers: fc.Arbitrary<Peers> = fc
  .record({
    files: fc.option(path),
    cluster: fc.stringMatching(/^[a-z0-9][a-z0-9._-]{0,9}$/),
    places,
    listed: fc.option(listed),
    summaryMs: word(0, 200, 600_000),
    transports: fc.constantFrom<Peers["transports"]>(
      "auto",
      ["stream"],
      ["quic", "stream", "rdma"],
    ),
    cipher: word("aegis-128l", "aes-128-gcm", "none"),
    bytes: fc.integer({ min: MIB, max: 2 ** 40 }),
    progressMs: duration,
    cooldownMaxMs: duration,
    prefill: fc.option(fc.integer({ min: 1, max: 1_000_000 })),
    namespaces: fc.option(
      fc.uniqueArray(fc.stringMatching(/^[0-9a-f]{64}$/), { minLength: 1, maxLength: 3 }),
    ),
  })
  .map((draw) => {
    return {
      certFile: draw.files,
      keyFile: draw.files,
      caFile: draw.files,
      cluster: draw.cluster,
      ...draw.places,
      peers: draw.listed,
      summaryMs: draw.summaryMs,
      transports: draw.transports,
      cipher: draw.cipher,
      trustedNetwork: draw.cipher === "none" || draw.transports.includes("rdma"),
      bytesMax: draw.bytes,
      progressMs: draw.progressMs,
      cooldownMaxMs: draw.cooldownMaxMs,
      prefillTokensPerSecond: draw.prefill,
      serveNamespaces: draw.namespaces ?? ("any" as const),
    };
  });
