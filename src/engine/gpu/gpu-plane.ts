import { type Clock, messageOf } from "../../core/index.ts";
import type { Gpus, Native } from "../../native/index.ts";
import type { EngineStats } from "../engine-stats.ts";
import { Feature } from "../protocol/index.ts";
import { GpuLine, type GpuLineParts } from "./gpu-line.ts";

export interface GpuPlaneOptions {
  /** Null: the agent copies nothing; engines use the arena's mapping by themselves. */
  readonly gpus: Gpus | null;
  readonly native: Native;
  readonly stats: EngineStats;
  readonly clock: Clock;
  log(level: "info" | "warn" | "error", text: string): void;
}

/** What all connections share of the GPUs. */
export class GpuPlane {
  readonly #gpus: Gpus | null;
  readonly #options: GpuPlaneOptions;
  readonly #parts: GpuLineParts | null;
  /** Of connections that are over, those whose copies are not. */
  readonly #leaving = new Set<GpuLine>();

  constructor(options: GpuPlaneOptions) {
    const { gpus, native, stats, clock } = options;
    this.#gpus = gpus?.info.state === "ready" ? gpus : null;
    this.#options = options;
    const inBackground = (work: Promise<unknown>) => this.#watch(work);
    const parts = { native, stats, clock, inBackground };
    this.#parts = this.#gpus === null ? null : { ...parts, gpus: this.#gpus };
  }

  /** What the hello's answer may say. */
  get features(): number {
    const isThere = this.#gpus?.devices().some((device) => device.lost === null);
    return isThere ? Feature.gpu : 0;
  }

  get hasBatches(): boolean {
    return this.#gpus?.info.hasBatches === true;
  }

  /**
   * Slots that a device may touch though no connection holds them: copies for connections that are
   * over (each counts once), and what cannot be stopped.
   */
  get orphans(): number {
    let copies = 0;
    for (const line of this.#leaving) {
      if (line.copies === 0) this.#leaving.delete(line);
      copies += line.copies;
    }
    return copies + this.#options.stats.gpuLeakedSlots;
  }

  open(): GpuLine {
    return new GpuLine(this.#parts);
  }

  close(line: GpuLine): void {
    line.close();
    if (line.copies > 0) this.#leaving.add(line);
  }

  #watch(work: Promise<unknown>): void {
    work.catch((error) => this.#options.log("error", `GPU memory: ${messageOf(error)}`));
  }
}
