/**
 * Doubly linked lists over the numbers 0 … items - 1, each item in one list or in none. Flat
 * arrays: an item's links at its own index, a list's first and last at the index of its head,
 * `items + list`.
 */
export interface Lists {
  has(item: number): boolean;
  /** The item appended to `list` longest ago; only for a list that is not empty. */
  first(list: number): number;
  isEmpty(list: number): boolean;
  /** Puts an item that is in no list at the end of one. */
  append(list: number, item: number): void;
  remove(item: number): void;
  /** How many of `items[from .. to)` are in a list, up to the first that is not. */
  leading(items: Uint32Array, from: number, to: number): number;
}

const NONE = 0xffff_ffff;

export function createLists(items: number, lists: number): Lists {
  const next = new Uint32Array(items + lists).fill(NONE, 0, items);
  const previous = new Uint32Array(items + lists);
  for (let head = items; head < items + lists; head++) {
    next[head] = head;
    previous[head] = head;
  }
  return {
    has: (item) => next[item] !== NONE,
    first: (list) => next[items + list]!,
    isEmpty: (list) => next[items + list] === items + list,
    append(list, item) {
      const head = items + list;
      const last = previous[head]!;
      next[last] = item;
      previous[item] = last;
      next[item] = head;
      previous[head] = item;
    },
    remove(item) {
      const before = previous[item]!;
      const after = next[item]!;
      next[before] = after;
      previous[after] = before;
      next[item] = NONE;
    },
    leading(of, from, to) {
      let at = from;
      while (at < to && next[of[at]!] !== NONE) at++;
      return at - from;
    },
  };
}
