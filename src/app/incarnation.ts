import type { Clock, Random } from "../core/index.ts";

/**
 * Of one run of an agent. Later runs have larger ones as long as the clock does not go back, and no
 * two have the same.
 */
export function newIncarnation(clock: Clock, random: Random): bigint {
  const ms = BigInt(Math.max(1, Math.floor(clock.wallMs())));
  return (ms << 20n) | BigInt(random.u32() >>> 12);
}
