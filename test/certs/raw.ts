import { createPrivateKey } from "node:crypto";
import { connect as connectTcp, createServer as createTcpServer, type Socket } from "node:net";
import { connect as connectQuic, listen as listenQuic } from "node:quic";
import { connect as connectTls, createServer as createTlsServer, type TlsOptions } from "node:tls";
import type { Credentials, Endpoint } from "../../src/peers/index.ts";
import { type TestCluster, withTempDir, writeCredentials } from "../support/index.ts";
import { BAD_CREDENTIALS } from "./bad-credentials.ts";
import { BAD, type Direction, GOOD, type Rig } from "./rig.ts";

/** A stranger that does not follow a transport's protocol. */
export interface RawCase {
  readonly name: string;
  readonly transport: "stream" | "quic";
  readonly direction: Direction;
  /** Resolves when it was refused or has an answer; for a server: when it listens. */
  run(rig: Rig): Promise<RawEnd>;
}

export type RawEnd =
  | { readonly kind: "called"; readonly gotAnswer: boolean }
  | { readonly kind: "listening"; readonly endpoint: Endpoint; close(): void };

const STREAM_ALPN = "hearth-stream/1";
const PATIENCE_MS = 4_000;
/** Resembles a request. */
const REQUEST = Buffer.from("0100000000000000", "hex");

/** Sends data as soon as possible. A stranger that is not disconnected counts as accepted. */
function callEnds(socket: Socket, ready: "connect" | "secureConnect"): Promise<RawEnd> {
  return new Promise((resolve) => {
    const end = (gotAnswer: boolean) => {
      socket.destroy();
      resolve({ kind: "called", gotAnswer });
    };
    socket.on("error", () => undefined);
    socket.on(ready, () => socket.write(REQUEST));
    socket.on("data", () => undefined);
    socket.on("close", () => end(false));
    socket.setTimeout(PATIENCE_MS, () => end(true));
  });
}

function tlsCall(name: string, options: (good: Credentials) => object): RawCase {
  return {
    name,
    transport: "stream",
    direction: "caller",
    async run({ cluster, good }) {
      const { host, port } = good.endpoint;
      const own = options(cluster.host(BAD));
      const socket = connectTls({ host, port, rejectUnauthorized: false, servername: "", ...own });
      return callEnds(socket, "secureConnect");
    },
  };
}

const shown = ({ certificates, key }: Credentials) => ({ cert: certificates, key });

/** Presents certificates that the runtime's own library would refuse to send. */
function opensslCall(name: string): RawCase {
  return {
    name: `${name}, shown by openssl`,
    transport: "stream",
    direction: "caller",
    async run({ cluster, good }) {
      const bad = BAD_CREDENTIALS.find((one) => one.name === name)!.make(cluster, BAD);
      return withTempDir(async (folder) => {
        const { certFile, keyFile } = writeCredentials(folder, bad);
        const files = ["-cert", certFile, "-key", keyFile];
        const to = ["-connect", `${good.endpoint.host}:${good.endpoint.port}`];
        const words = ["s_client", "-quiet", "-alpn", STREAM_ALPN, ...to, ...files];
        const child = Bun.spawn(["openssl", ...words], {
          stdin: "pipe",
          stdout: "ignore",
          stderr: "ignore",
          timeout: PATIENCE_MS,
        });
        child.stdin.write(REQUEST);
        await child.stdin.flush();
        await child.exited;
        return { kind: "called", gotAnswer: child.signalCode !== null };
      });
    },
  };
}

const OPENSSL_CALLS =
  Bun.which("openssl") === null
    ? []
    : ["the cluster's authority itself", "key not for signatures"].map(opensslCall);

const STREAM_CALLS: readonly RawCase[] = [
  {
    name: "plain TCP",
    transport: "stream",
    direction: "caller",
    async run({ good }) {
      return callEnds(connectTcp(good.endpoint.port, good.endpoint.host), "connect");
    },
  },
  tlsCall("no certificate", () => ({ ALPNProtocols: [STREAM_ALPN] })),
  tlsCall("TLS 1.2 at most", (good) => ({
    ...shown(good),
    ALPNProtocols: [STREAM_ALPN],
    minVersion: "TLSv1.2",
    maxVersion: "TLSv1.2",
  })),
  tlsCall("another protocol (ALPN)", (good) => ({ ...shown(good), ALPNProtocols: ["h2"] })),
  tlsCall("no protocol (ALPN)", (good) => shown(good)),
];

function tlsHost(name: string, options: (good: Credentials) => TlsOptions): RawCase {
  return {
    name,
    transport: "stream",
    direction: "host",
    async run({ cluster }) {
      const server = createTlsServer({
        ...shown(cluster.host(BAD)),
        ...options(cluster.host(BAD)),
      });
      server.on("tlsClientError", () => undefined);
      server.on("secureConnection", (socket) => {
        socket.on("error", () => undefined);
        socket.on("data", () => undefined);
      });
      return listening(server);
    },
  };
}

function listening(server: ReturnType<typeof createTcpServer>): Promise<RawEnd> {
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      const endpoint = { host: "127.0.0.1", port };
      resolve({ kind: "listening", endpoint, close: () => void server.close() });
    });
  });
}

const STREAM_HOSTS: readonly RawCase[] = [
  {
    name: "plain TCP",
    transport: "stream",
    direction: "host",
    async run() {
      const server = createTcpServer((socket) => {
        socket.on("error", () => undefined);
        socket.end("HTTP/1.1 400 Bad Request\r\n\r\n");
      });
      return listening(server);
    },
  },
  tlsHost("TLS 1.2 at most", () => ({
    ALPNProtocols: [STREAM_ALPN],
    minVersion: "TLSv1.2",
    maxVersion: "TLSv1.2",
  })),
  tlsHost("another protocol (ALPN)", () => ({ ALPNProtocols: ["h2"] })),
  tlsHost("no protocol (ALPN)", () => ({})),
];

const QUIC_ALPN = "hearth-kv/1";

function quicCall(
  name: string,
  alpn: string,
  options: (good: Credentials, cluster: TestCluster) => object,
): RawCase {
  return {
    name,
    transport: "quic",
    direction: "caller",
    async run({ cluster, good, trust }) {
      const { host, port } = good.endpoint;
      const session = await connectQuic(`${host}:${port}`, {
        alpn,
        servername: GOOD,
        ca: [Buffer.from(trust.credentials.authorities)],
        handshakeTimeout: PATIENCE_MS,
        ...options(cluster.host(BAD), cluster),
      } as never);
      session.closed.catch(() => undefined);
      const answer = async (): Promise<boolean> => {
        await session.opened;
        const stream = await session.createBidirectionalStream({ body: REQUEST } as never);
        stream.closed.catch(() => undefined);
        let heard = 0;
        for await (const batch of stream as AsyncIterable<Uint8Array[]>) {
          for (const chunk of batch) heard += chunk.length;
        }
        return heard > 0;
      };
      const gotAnswer = await answer().catch(() => false);
      session.destroy();
      return { kind: "called", gotAnswer };
    },
  };
}

const quicKeys = ({ certificates, key }: Credentials) => ({
  keys: [createPrivateKey(key)],
  certs: [Buffer.from(certificates)],
});

function quicHost(name: string, alpn: string, options: (good: Credentials) => object): RawCase {
  return {
    name,
    transport: "quic",
    direction: "host",
    async run({ cluster }) {
      const own = cluster.host(BAD);
      const server = await listenQuic(
        async (session) => {
          session.opened.catch(() => undefined);
          session.closed.catch(() => undefined);
        },
        {
          alpn: [alpn],
          sni: { "*": quicKeys(own) },
          ca: [Buffer.from(own.authorities)],
          verifyClient: true,
          endpoint: { address: "127.0.0.1:0" },
          ...options(own),
        } as never,
      );
      server.closed.catch(() => undefined);
      const { port } = server.address as { port: number };
      const endpoint = { host: "127.0.0.1", port };
      return { kind: "listening", endpoint, close: () => void server.destroy() };
    },
  };
}

const QUIC: readonly RawCase[] = [
  quicCall("no certificate", QUIC_ALPN, () => ({})),
  ...["another cluster", "for no use"]
    .map((name) => `${name}, with a good host's behind it`)
    .map((name) =>
      quicCall(`${name}, without our library`, QUIC_ALPN, (_good, cluster) =>
        quicKeys(BAD_CREDENTIALS.find((bad) => bad.name === name)!.make(cluster, BAD)),
      ),
    ),
  quicCall("another protocol (ALPN)", "h3", quicKeys),
  quicHost("another protocol (ALPN)", "h3", () => ({})),
];

export const RAW_CASES: readonly RawCase[] = [
  ...STREAM_CALLS,
  ...OPENSSL_CALLS,
  ...STREAM_HOSTS,
  ...QUIC,
];
