import { type Random, randomBelow } from "../../core/index.ts";

const TRY_FIRST_MS = 1_000;
const TRY_MS_MAX = 10_000;
const ABSENT_FIRST_MS = 100;
const ABSENT_MS_MAX = 2_000;
const JITTER = 0.25;

/** How long a worker that just said how far it is may be silent before it is asked again. */
export const PROGRESS_MS = 10_000;

function grown(firstMs: number, maxMs: number, tries: number, random: Random): number {
  const ms = Math.min(firstMs * 2 ** (tries - 1), maxMs);
  return ms * (1 - JITTER) + randomBelow(random, Math.ceil(2 * JITTER * ms));
}

/** How long the answer to try number `tries` (from 1) is waited for; ±25 %. */
export function tryMs(tries: number, random: Random): number {
  return grown(TRY_FIRST_MS, TRY_MS_MAX, tries, random);
}

/** How long to wait after try number `tries` that met nobody; ±25 %. */
export function absentMs(tries: number, random: Random): number {
  return grown(ABSENT_FIRST_MS, ABSENT_MS_MAX, tries, random);
}
