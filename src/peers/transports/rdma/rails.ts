import type { RdmaPort } from "../../../native/index.ts";
import type { Rail } from "./control/index.ts";

/** A port of the other side and one of ours that reach each other, as far as addresses tell. */
export interface RailPair {
  /** Which of theirs. */
  readonly rail: number;
  readonly port: RdmaPort;
}

/** An IPv4 address as a GID begins like this. */
const MAPPED = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const SUBNET_BYTES = 8;

/**
 * Ports that can be used now, in the order in which they are offered: those with fewer links first,
 * so that peers spread over them, then the faster ones.
 */
export function usablePorts(
  ports: readonly RdmaPort[],
  linksOn: (port: number) => number,
): RdmaPort[] {
  return ports
    .filter(({ state }) => state === "active")
    .sort((a, b) => linksOn(a.index) - linksOn(b.index) || b.speed - a.speed || a.index - b.index);
}

/**
 * Which of their rails go with which of our ports, at most `wanted`, each used once: of those that
 * can reach each other at all the ones whose addresses are alike for longest, since they are most
 * likely of one network; then in the order of theirs, then of ours.
 */
export function pairRails(
  theirs: readonly Rail[],
  ours: readonly RdmaPort[],
  wanted: number,
): RailPair[] {
  const pairs = theirs
    .flatMap((rail, index) =>
      ours
        .filter((port) => mayReach(rail, port))
        .map((port) => ({ rail: index, port, alike: bitsAlike(rail.gid, port.gid) })),
    )
    .sort((a, b) => b.alike - a.alike);
  const chosen: RailPair[] = [];
  for (const { rail, port } of pairs) {
    if (chosen.length === wanted) break;
    if (chosen.some((one) => one.rail === rail || one.port === port)) continue;
    chosen.push({ rail, port });
  }
  return chosen;
}

function mayReach(a: Rail, b: Rail): boolean {
  if (a.linkLayer !== b.linkLayer || a.isRoceV2 !== b.isRoceV2) return false;
  if (a.linkLayer === "infiniband") return bitsAlike(a.gid, b.gid) >= 8 * SUBNET_BYTES;
  return isMapped(a.gid) === isMapped(b.gid);
}

function isMapped(gid: Uint8Array): boolean {
  return MAPPED.every((byte, index) => gid[index] === byte);
}

function bitsAlike(a: Uint8Array, b: Uint8Array): number {
  const at = a.findIndex((byte, index) => byte !== b[index]);
  return at < 0 ? 8 * a.length : 8 * at + Math.clz32((a[at]! ^ b[at]!) << 24);
}
