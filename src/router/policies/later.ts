/** Things to do later, in order of time; bounded: beyond it nothing is taken. */
export class Later {
  readonly #max: number;
  readonly #tasks: { readonly dueMs: number; readonly run: () => void }[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  get size(): number {
    return this.#tasks.length;
  }

  /** False: there is no room. */
  add(dueMs: number, run: () => void): boolean {
    if (this.#tasks.length >= this.#max) return false;
    let at = this.#tasks.length;
    while (at > 0 && this.#tasks[at - 1]!.dueMs > dueMs) at--;
    this.#tasks.splice(at, 0, { dueMs, run });
    return true;
  }

  /** Does what is due by then; what that adds waits for the next time. */
  run(nowMs: number): void {
    let due = 0;
    while (due < this.#tasks.length && this.#tasks[due]!.dueMs <= nowMs) due++;
    for (const { run } of this.#tasks.splice(0, due)) run();
  }
}
