/**
 * Binary min-heap. `isBefore(a, b)` returns whether `a` is removed before `b`; it must be a strict
 * weak order.
 */
export class MinHeap<T> {
  readonly #isBefore: (a: T, b: T) => boolean;
  #items: T[] = [];

  constructor(isBefore: (a: T, b: T) => boolean) {
    this.#isBefore = isBefore;
  }

  get size(): number {
    return this.#items.length;
  }

  peek(): T | undefined {
    return this.#items[0];
  }

  push(item: T): void {
    const items = this.#items;
    let at = items.push(item) - 1;
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (!this.#isBefore(item, items[above])) break;
      items[at] = items[above];
      at = above;
    }
    items[at] = item;
  }

  pop(): T | undefined {
    const items = this.#items;
    const first = items[0];
    const last = items.pop();
    if (items.length > 0) {
      items[0] = last!;
      this.#sink(0);
    }
    return first;
  }

  /** Removes the items for which `isWanted` returns false. Takes linear time. */
  retain(isWanted: (item: T) => boolean): void {
    this.#items = this.#items.filter(isWanted);
    for (let at = (this.#items.length >> 1) - 1; at >= 0; at--) this.#sink(at);
  }

  #sink(from: number): void {
    const items = this.#items;
    const item = items[from];
    let at = from;
    for (;;) {
      let below = at * 2 + 1;
      if (below >= items.length) break;
      if (below + 1 < items.length && this.#isBefore(items[below + 1], items[below])) below++;
      if (!this.#isBefore(items[below], item)) break;
      items[at] = items[below];
      at = below;
    }
    items[at] = item;
  }
}
