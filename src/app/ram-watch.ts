import type { Config } from "../config/index.ts";
import type { Health, Logger } from "../observability/index.ts";
import { RamScrub, type TieredStore } from "../store/index.ts";

/** A damaged block is worth knowing of for an hour. */
const DAMAGE_MS = 3_600_000;

/** Tells people of blocks that were damaged in RAM, and looks for more of them. */
export class RamWatch implements AsyncDisposable {
  readonly #scrub: RamScrub;

  constructor(store: TieredStore, health: Health, logger: Logger) {
    this.#scrub = new RamScrub(store);
    store.checks.onDamage = (damage) => {
      const { found, count, digest, offset } = damage;
      logger.error("a block in RAM was damaged, and is dropped", { ...damage });
      const where = offset === null ? "outside of the arena" : `at byte ${offset} of the arena`;
      const last = `last block ${digest} ${where}, found by ${found}`;
      health.raise("KV_RAM_CSUM", `${count} since the start, ${last}`, { forMs: DAMAGE_MS });
    };
  }

  configure({ kv }: Config): void {
    this.#scrub.setRate(kv.ramScrubBytesPerSecond);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#scrub[Symbol.asyncDispose]();
  }
}
