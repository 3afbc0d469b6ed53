/**
 * Beginnings of topics that one subscriber wants. Each counts: what was asked for twice must be
 * given up twice.
 */
export class Topics {
  readonly #counts = new Map<string, number>();
  readonly #max: number;

  constructor(max: number) {
    this.#max = max;
  }

  /** Different ones. */
  get size(): number {
    return this.#counts.size;
  }

  /** False: it wants more than it may. */
  add(topic: Uint8Array): boolean {
    const key = Buffer.from(topic).toString("latin1");
    const count = this.#counts.get(key) ?? 0;
    if (count === 0 && this.#counts.size >= this.#max) return false;
    this.#counts.set(key, count + 1);
    return true;
  }

  remove(topic: Uint8Array): void {
    const key = Buffer.from(topic).toString("latin1");
    const count = this.#counts.get(key) ?? 0;
    if (count > 1) this.#counts.set(key, count - 1);
    else this.#counts.delete(key);
  }

  /** `topic`: each byte a character. */
  match(topic: string): boolean {
    if (this.#counts.has("")) return true;
    for (const wanted of this.#counts.keys()) if (topic.startsWith(wanted)) return true;
    return false;
  }
}
