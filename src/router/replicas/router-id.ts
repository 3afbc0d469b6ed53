import type { Brand, Random } from "../../core/index.ts";

/** One run of one router, a u64 in decimal digits: its own news it hears, too, and passes over. */
export type RouterId = Brand<string, "RouterId">;

const ROUTER_ID = /^(?:0|[1-9][0-9]{0,19})$/;

/** At most 53 bits, as Dynamo's publishers have. */
export function newRouterId(random: Random): RouterId {
  const high = BigInt(random.u32() >>> 11);
  return String((high << 32n) | BigInt(random.u32()) | 1n) as RouterId;
}

export function isRouterId(text: unknown): text is RouterId {
  return typeof text === "string" && ROUTER_ID.test(text);
}
