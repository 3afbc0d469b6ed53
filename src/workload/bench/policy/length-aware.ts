import type { LabPolicy } from "./policy.ts";

/**
 * Least frequently used with ties broken by place: among blocks with equally few uses since they
 * were stored, the one deepest in its prompt goes; among these the one that the trace saw first,
 * the lowest number (by age instead, the reference figures differ in the fourth digit). A binary
 * heap of the blocks present, the next to go on top.
 */
export const lengthAware: LabPolicy = {
  name: "length-aware",
  open({ blocks, distinct }, capacity) {
    const heap = new Uint32Array(Math.min(capacity, distinct) + 1);
    /** Place in the heap, from 1; 0 is absent. */
    const place = new Uint32Array(distinct);
    const count = new Uint32Array(distinct);
    const depth = new Uint32Array(distinct);
    let size = 0;

    function goesBefore(a: number, b: number): boolean {
      if (count[a] !== count[b]) return count[a]! < count[b]!;
      if (depth[a] !== depth[b]) return depth[a]! > depth[b]!;
      return a < b;
    }

    function put(block: number, at: number): void {
      heap[at] = block;
      place[block] = at;
    }

    function rise(block: number, from: number): void {
      let at = from;
      for (let up = at >> 1; up > 0 && goesBefore(block, heap[up]!); up = at >> 1) {
        put(heap[up]!, at);
        at = up;
      }
      put(block, at);
    }

    function sink(block: number, from: number): void {
      let at = from;
      for (let down = 2 * at; down <= size; down = 2 * at) {
        if (down < size && goesBefore(heap[down + 1]!, heap[down]!)) down++;
        if (!goesBefore(heap[down]!, block)) break;
        put(heap[down]!, at);
        at = down;
      }
      put(block, at);
    }

    function store(block: number, at: number): void {
      count[block] = 1;
      depth[block] = at;
      if (size < capacity) rise(block, ++size);
      else {
        place[heap[1]!] = 0;
        sink(block, 1);
      }
    }

    return {
      serve(from, to) {
        let miss = from;
        while (miss < to && place[blocks[miss]!] !== 0) miss++;
        for (let at = to - 1; at >= from; at--) {
          const block = blocks[at]!;
          if (place[block] === 0) store(block, at - from);
          else {
            count[block]!++;
            sink(block, place[block]!);
          }
        }
        return miss - from;
      },
    };
  },
};
