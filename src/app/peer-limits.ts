import type { Config } from "../config/index.ts";
import { type PullLimits, SERVE_LIMITS, type ServeLimits } from "../peers/index.ts";

/** Of RAM: pulls and loans leave the rest to engines. */
const RAM_SHARE = 0.5;
/** Of what is lent, to one peer. */
const PEER_SHARE = 0.5;

export function pullLimitsOf({ peers, kv }: Config): PullLimits {
  const most = Math.floor(kv.ramBytes * RAM_SHARE);
  return {
    bytesMax: Math.min(peers.bytesMax, most),
    peerBytesMax: Math.min(peers.peerBytesMax, most),
    namespaceBytesMax: Math.min(peers.namespaceBytesMax, most),
    itemsMax: peers.itemsMax,
    progressMs: peers.progressMs,
    dialMs: peers.dialMs,
    cooldownMs: peers.cooldownMs,
    cooldownMaxMs: peers.cooldownMaxMs,
    transports: peers.transports,
    prefillTokensPerS: peers.prefillTokensPerSecond,
    mirrorPulls: kv.mirrorPulls,
  };
}

export function serveLimitsOf({ peers, kv }: Config): ServeLimits {
  const bytesMax = Math.min(peers.serveBytesMax, Math.floor(kv.ramBytes * RAM_SHARE));
  const { serveNamespaces, summaryMs } = peers;
  return {
    ...SERVE_LIMITS,
    bytesMax,
    peerBytesMax: Math.floor(bytesMax * PEER_SHARE),
    namespaces: serveNamespaces === "any" ? null : new Set(serveNamespaces),
    summaryMs: summaryMs === 0 ? SERVE_LIMITS.summaryMs : summaryMs,
  };
}
