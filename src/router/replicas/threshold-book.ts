import type { BusyThresholds } from "../route.ts";
import { type SetThresholds, THRESHOLDS_MAX } from "./announcement.ts";

/** The latest thresholds of each model that were set while routers ran, by whichever of them. */
export class ThresholdBook {
  readonly #latest = new Map<string, SetThresholds>();

  get all(): readonly SetThresholds[] {
    return [...this.#latest.values()];
  }

  of(model: string): BusyThresholds | null {
    return this.#latest.get(model)?.thresholds ?? null;
  }

  /** True: it is later than what was known. */
  take(set: SetThresholds): boolean {
    const known = this.#latest.get(set.model);
    if (known === undefined && this.#latest.size >= THRESHOLDS_MAX) return false;
    const isLater =
      known === undefined ||
      set.wallMs > known.wallMs ||
      (set.wallMs === known.wallMs && set.router > known.router);
    if (isLater) this.#latest.set(set.model, set);
    return isLater;
  }
}
