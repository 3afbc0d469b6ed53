import { createPrivateKey } from "node:crypto";
import type { Credentials } from "../../trust.ts";
import type { QuicLimits } from "./limits.ts";
import type { SessionOptions } from "./module.ts";

export const ALPN = "hearth-kv/1";

const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\s*/g;

function certificatesOf(pem: string): string[] {
  return pem.match(CERTIFICATE) ?? [];
}

function common(limits: QuicLimits) {
  return {
    handshakeTimeout: limits.handshakeMs,
    transportParams: {
      initialMaxStreamsBidi: limits.linkRequestsMax,
      initialMaxStreamsUni: 0,
      maxDatagramFrameSize: 0,
      maxIdleTimeout: Math.ceil(limits.silentMs / 1_000),
    },
  };
}

/**
 * What a server shows and whom it believes. An asker may show its own certificate only, so those
 * that stand between it and the authorities are taken from our own chain.
 */
export function serverOptions(credentials: Credentials, limits: QuicLimits): SessionOptions {
  const { key, certificates, authorities } = credentials;
  const [, ...between] = certificatesOf(certificates);
  const identity = { keys: [createPrivateKey(key)], certs: [Buffer.from(certificates)] };
  return {
    ...common(limits),
    alpn: [ALPN],
    sni: { "*": identity },
    ca: [authorities, ...between].map((pem) => Buffer.from(pem)),
    verifyClient: true,
  };
}

/**
 * What an asker shows: its own certificate alone, because of a chain the runtime tells a server
 * another one. Names are not compared by the runtime, which does not know ours.
 */
export function askerOptions(credentials: Credentials, limits: QuicLimits): SessionOptions {
  const { key, certificates, authorities } = credentials;
  const own = certificatesOf(certificates)[0] ?? certificates;
  const keepAlive = { keepAlive: limits.keepAliveMs };
  return {
    ...common(limits),
    ...keepAlive,
    alpn: ALPN,
    keys: [createPrivateKey(key)],
    certs: [Buffer.from(own)],
    ca: [Buffer.from(authorities)],
    verifyPeer: "manual",
  };
}
