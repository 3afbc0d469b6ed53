import { refuse, show } from "./lines.ts";
import { LIMITS } from "./trace.ts";

/** Names below this are looked up in an array, others in a map. */
const DIRECT_MAX = 2 ** 22;

/**
 * Maps a trace's block names to dense numbers. `base` is the number of the first new block: for
 * files whose names restart, session by session.
 */
export function createPrefixIds(base = 0) {
  /** name → number + 1, counted from 0 whatever the base. */
  let direct = new Uint32Array(1_024);
  const sparse = new Map<number | bigint, number>();
  /** number → number + 1 of the preceding block; 0 if the block starts a prompt. */
  let parents = new Uint32Array(1_024);
  let size = 0;

  function add(name: number | bigint, parent: number): number {
    if (base + size >= LIMITS.distinctBlocksMax)
      throw refuse(`more than ${LIMITS.distinctBlocksMax} distinct blocks`);
    if (size === parents.length) parents = grown(parents, size + 1);
    parents[size++] = parent;
    if (typeof name === "number" && name < DIRECT_MAX) {
      if (name >= direct.length) direct = grown(direct, name + 1);
      direct[name] = size;
    } else sparse.set(name, size);
    return size;
  }

  return {
    /** Distinct blocks seen so far. */
    get size() {
      return size;
    },
    /**
     * The numbers of a prompt's blocks, in order of first occurrence. Refuses a block whose
     * predecessor differs from its earlier one, because its name would not identify its prefix.
     */
    intern(names: ArrayLike<number | bigint>) {
      const ids = new Uint32Array(names.length);
      let parent = 0;
      for (let i = 0; i < names.length; i++) {
        const name = names[i];
        const small = typeof name === "number" && name < DIRECT_MAX;
        let id = (small ? direct[name] : sparse.get(name)) ?? 0;
        if (id === 0) id = add(name, parent);
        else if (parents[id - 1] !== parent)
          throw refuse(
            `block ${i} of the prompt, ${show(name)}, followed another block before: ` +
              "names must stand for prefixes",
          );
        ids[i] = base + id - 1;
        parent = id;
      }
      return ids;
    },
  };
}

function grown(array: Uint32Array<ArrayBuffer>, atLeast: number): Uint32Array<ArrayBuffer> {
  const larger = new Uint32Array(Math.max(atLeast, array.length * 2));
  larger.set(array);
  return larger;
}
