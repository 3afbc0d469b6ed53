import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Random, randomBelow } from "../../../src/core/index.ts";

const TEN_YEARS_S = 10 * 365.25 * 86_400;

/** By how much the wall clock of agents is wrong: it jumps, also while they run. */
export class WallClock {
  readonly path: string;
  jumps = 0;

  constructor(folder: string) {
    this.path = join(folder, "wall-offset");
    this.#set(0);
  }

  /** Somewhere within ten years of the truth. */
  jump(random: Random): void {
    this.#set((randomBelow(random, 2 * TEN_YEARS_S) - TEN_YEARS_S) * 1_000);
    this.jumps++;
  }

  /** In one step: who reads it finds a number. */
  #set(offsetMs: number): void {
    writeFileSync(`${this.path}.new`, `${offsetMs}`);
    renameSync(`${this.path}.new`, this.path);
  }
}
