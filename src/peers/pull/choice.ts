import { type Random, randomBelow } from "../../core/index.ts";
import type { PeerRecord } from "../directory/index.ts";
import type { HardwareReport } from "../messages.ts";
import { TRANSPORTS } from "../transport.ts";
import type { PullLimits } from "./puller.ts";
import type { Way } from "./way.ts";

/** One of so many requests goes the way of which nothing is known, to learn what it carries. */
const PROBE_ONE_OF = 256;
/** A way is chosen for its speed only where it is faster by this much. */
const CLEARLY = 1.2;

export interface ChoiceParts {
  readonly own: HardwareReport;
  readonly peer: HardwareReport | null;
  readonly record: PeerRecord;
  readonly transports: PullLimits["transports"];
  readonly random: Random;
}

/**
 * The ways to a peer, the best first: those this host and the peer have in common. In the order of
 * the configuration; else by what both hosts' hardware has (RDMA first), then by the bytes a second
 * that each carried lately. Those that failed lately come last, however good they were.
 */
export function orderWays(ways: readonly Way[], parts: ChoiceParts): Way[] {
  const usable = ways.filter((way) => isUsable(way, parts));
  const { transports } = parts;
  const ranked =
    transports === "auto"
      ? rankBySpeed(usable, parts)
      : usable.sort(by((way) => transports.indexOf(way.transport.name)));
  return ranked.sort(by((way) => (way.breaker.allows ? 0 : 1)));
}

/** Whether both hosts have it, and may use it. */
export function isUsable(
  { transport }: Way,
  { own, peer, record, transports }: ChoiceParts,
): boolean {
  if (transport.unsupported !== null || record.endpoints[transport.name] === undefined)
    return false;
  if (transport.name === "rdma" && !(own.hasRdmaNic && hasRdma(peer, transports))) return false;
  return transports === "auto" || transports.includes(transport.name);
}

/** Of a peer that has not said what it has, it is tried only where the operator asks for it. */
function hasRdma(peer: HardwareReport | null, transports: PullLimits["transports"]): boolean {
  return peer === null ? transports !== "auto" : peer.hasRdmaNic;
}

function rankBySpeed(ways: Way[], { random }: ChoiceParts): Way[] {
  const natural = ways.sort(by((way) => TRANSPORTS.indexOf(way.transport.name)));
  const [first, ...others] = natural;
  if (first === undefined || others.length === 0) return natural;
  const known = others.filter((way) => way.meter.goodput !== null);
  const best = known.sort(by((way) => -way.meter.goodput!))[0];
  const speed = first.meter.goodput;
  if (best !== undefined && speed !== null && best.meter.goodput! > speed * CLEARLY)
    return [best, ...natural.filter((way) => way !== best)];
  const unknown = others.find((way) => way.meter.goodput === null && way.breaker.allows);
  if (unknown !== undefined && speed !== null && randomBelow(random, PROBE_ONE_OF) === 0)
    return [unknown, ...natural.filter((way) => way !== unknown)];
  return natural;
}

function by(rank: (way: Way) => number): (a: Way, b: Way) => number {
  return (a, b) => rank(a) - rank(b);
}
