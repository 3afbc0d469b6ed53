import type { BusyThresholds } from "../route.ts";

/** When a worker counts as busy: what the settings say, or what was set since for one model. */
export class Thresholds {
  readonly #initial: BusyThresholds;
  readonly #byModel = new Map<string, BusyThresholds>();

  constructor({ activeDecodeBlocksThreshold, activePrefillTokensThreshold }: BusyThresholds) {
    this.#initial = { activeDecodeBlocksThreshold, activePrefillTokensThreshold };
  }

  of(model: string): BusyThresholds {
    return this.#byModel.get(model) ?? this.#initial;
  }

  /** What is left out stays; null switches it off. */
  set(model: string, changed: Partial<BusyThresholds>): void {
    const before = this.of(model);
    const {
      activeDecodeBlocksThreshold = before.activeDecodeBlocksThreshold,
      activePrefillTokensThreshold = before.activePrefillTokensThreshold,
      activePrefillTokensThresholdFrac: frac = before.activePrefillTokensThresholdFrac ?? null,
    } = changed;
    this.#byModel.set(model, {
      ...{ activeDecodeBlocksThreshold, activePrefillTokensThreshold },
      ...(frac === null ? {} : { activePrefillTokensThresholdFrac: frac }),
    });
  }

  forget(model: string): void {
    this.#byModel.delete(model);
  }
}
