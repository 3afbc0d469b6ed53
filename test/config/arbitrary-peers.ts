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
    port: fc.nat(65_535),
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

function isTaken({ listenStream }: Pick<Peers, "listenStream">, port: number): boolean {
  return listenStream !== "off" && listenStream.port === port;
}

/** Sections [peers] of every shape, each a valid one. */
export const arbitraryPeers: fc.Arbitrary<Peers> = fc
  .record({
    files: fc.option(path),
    cluster: fc.stringMatching(/^[a-z0-9][a-z0-9._-]{0,9}$/),
    places,
    lanesPort: fc.nat(65_535),
    listed: fc.option(listed),
    announceMs: word(0, 500, 5_000),
    summaryMs: word(0, 200, 600_000),
    transports: fc.constantFrom<Peers["transports"]>(
      "auto",
      ["stream"],
      ["quic", "stream", "rdma"],
    ),
    encrypt: fc.boolean(),
    cipher: word("aegis-128l", "aes-128-gcm"),
    bytes: fc.integer({ min: MIB, max: 2 ** 40 }),
    share: fc.double({ min: 0, max: 1, noNaN: true }),
    items: fc.integer({ min: 1, max: 256 }),
    progressMs: duration,
    dialMs: duration,
    cooldownMs: duration,
    cooldownMaxMs: duration,
    prefill: fc.option(fc.integer({ min: 1, max: 1_000_000 })),
    namespaces: fc.option(
      fc.uniqueArray(fc.stringMatching(/^[0-9a-f]{64}$/), { minLength: 1, maxLength: 3 }),
    ),
  })
  .map((draw) => {
    const part = Math.max(MIB, Math.floor(draw.bytes * draw.share));
    return {
      certFile: draw.files,
      keyFile: draw.files,
      caFile: draw.files,
      cluster: draw.cluster,
      ...draw.places,
      lanesPort: isTaken(draw.places, draw.lanesPort) ? 0 : draw.lanesPort,
      peers: draw.listed,
      announceMs: draw.announceMs,
      summaryMs: draw.summaryMs,
      transports: draw.transports,
      encrypt: draw.encrypt,
      cipher: draw.cipher,
      trustedNetwork: !draw.encrypt || draw.transports.includes("rdma"),
      bytesMax: draw.bytes,
      peerBytesMax: part,
      namespaceBytesMax: part,
      serveBytesMax: draw.bytes,
      itemsMax: draw.items,
      progressMs: draw.progressMs,
      dialMs: draw.dialMs,
      cooldownMs: Math.min(draw.cooldownMs, draw.cooldownMaxMs),
      cooldownMaxMs: draw.cooldownMaxMs,
      prefillTokensPerSecond: draw.prefill,
      serveNamespaces: draw.namespaces ?? ("any" as const),
    };
  });
