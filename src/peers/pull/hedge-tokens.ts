/** Second questions for each first one: what is slow at one peer must not double the load. */
const EARNED = 0.1;
const KEPT_MAX = 16;

/** Bounds how often a second peer is asked for what a first one was asked for. */
export class HedgeTokens {
  #tokens = KEPT_MAX;

  earn(): void {
    this.#tokens = Math.min(this.#tokens + EARNED, KEPT_MAX);
  }

  take(): boolean {
    if (this.#tokens < 1) return false;
    this.#tokens--;
    return true;
  }
}
