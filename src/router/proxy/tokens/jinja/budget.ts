import { PythonError } from "../python/index.ts";

export interface RenderLimits {
  /** Nodes that are evaluated and items that are walked through. */
  readonly steps: number;
  /** Characters of texts and items of lists that are made, output included. */
  readonly made: number;
}

/** A template may loop for ever or double a text until memory is full. */
export const RENDER_LIMITS: RenderLimits = { steps: 5_000_000, made: 256 * 1024 * 1024 };

/** Calls in calls: macros, and filters that call filters. */
const DEPTH_MAX = 150;

/** Throws PythonError when a render has used up what it may use. */
export class Budget {
  #steps: number;
  #made: number;
  #depth = 0;

  constructor({ steps, made }: RenderLimits) {
    [this.#steps, this.#made] = [steps, made];
  }

  step(count = 1): void {
    this.#steps -= count;
    if (this.#steps < 0) throw new PythonError("the template takes too many steps");
  }

  made(length: number): void {
    this.#made -= length;
    if (this.#made < 0) throw new PythonError("the template makes too much text");
  }

  deeper<T>(run: () => T): T {
    if (++this.#depth > DEPTH_MAX) throw new PythonError("maximum recursion depth exceeded");
    const result = run();
    this.#depth--;
    return result;
  }
}
