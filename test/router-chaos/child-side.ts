import { openBus } from "../../src/bus/index.ts";
import { systemClock, systemRandom } from "../../src/core/index.ts";
import type { Order, RouterReport, WorkerReport } from "./messages.ts";

/** What both sorts of children share: how they speak to NATS, and to the process above. */

export function chaosBus(url: string, name: string) {
  const limits = {
    ...{ connectMs: 1_000, retryMinMs: 30, retryMaxMs: 150, pingMs: 500, silenceMs: 500 },
  };
  return openBus({ url, name, clock: systemClock, random: systemRandom, limits });
}

export function tell(message: WorkerReport | RouterReport | "ready"): void {
  process.send?.(message);
}

/** Ends with the process above. */
export function obey(carryOut: (order: Order) => void): void {
  process.on("message", (order) => carryOut(order as Order));
  process.on("disconnect", () => process.exit(0));
}

export function specOf<Spec>(): Spec {
  return JSON.parse(process.env.CHAOS_SPEC!) as Spec;
}
