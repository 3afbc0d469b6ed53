import { type NamespaceIndex, NO_NODE } from "../../src/core/index.ts";
import type {
  Arrival,
  Committed,
  IncomingBlock,
  PeerBlocks,
  SlotRefusal,
} from "../../src/store/index.ts";

/** A place in the arena that a test watches. */
export interface Place {
  readonly offset: number;
  readonly bytes: number;
  state: "landing" | "committed" | "abandoned";
  /** A transport may still write to it. */
  writers: number;
}

/**
 * Blocks in RAM without RAM: places are numbers, and the checksum of a block is a function of its
 * digest. Whatever must not happen to a place throws, and stays in `faults`.
 */
export class ScriptedBlocks implements PeerBlocks {
  readonly places = new Map<number, Place>();
  readonly faults: string[] = [];
  readonly present = new Set<string>();
  /** Bytes of places that are neither committed nor abandoned; and the most there ever were. */
  landing = 0;
  arrivals = 0;
  released = 0;
  readonly removed = new Set<string>();
  used = 0;
  commits = 0;
  roomBytes = Number.POSITIVE_INFINITY;
  usual = 1_000;
  keeps: boolean[] = [];
  #next = 0;

  land(
    _namespace: NamespaceIndex,
    digest: Uint8Array,
    _layer: number,
    bytes: number,
    keep = true,
  ): IncomingBlock | SlotRefusal {
    if (this.present.has(digest.toHex())) return "present";
    if (this.removed.has(digest.toHex())) return "removed";
    if (this.landing + bytes > this.roomBytes) return "full";
    if (bytes > 1e9) return "tooLong";
    const place: Place = { offset: this.#next, bytes, state: "landing", writers: 0 };
    this.#next += bytes;
    this.places.set(place.offset, place);
    this.landing += bytes;
    this.keeps.push(keep);
    const end = (state: "committed" | "abandoned") => {
      if (place.state !== "landing") this.#fault(`a place is ${state} that was ${place.state}`);
      if (place.writers > 0) this.#fault(`a place is ${state} while a transport may write to it`);
      place.state = state;
      this.landing -= bytes;
    };
    return {
      ...{ offset: place.offset, bytes },
      abandon: () => end("abandoned"),
      commit: (block, arrived): Committed => {
        end("committed");
        this.commits++;
        const wrong = block.bytes > bytes || arrived !== checksumOf(digest);
        if (wrong || block.checksum !== arrived || block.digest.toHex() !== digest.toHex())
          return { kind: "corrupt", why: "not the requested block" };
        return { kind: "ok", arrival: this.#arrival() };
      },
    };
  }

  /** How many places are neither committed nor abandoned. */
  get open(): number {
    return [...this.places.values()].filter(({ state }) => state === "landing").length;
  }

  #arrival(): Arrival {
    let released = false;
    this.arrivals++;
    return {
      node: NO_NODE,
      release: (used) => {
        if (released) this.#fault("an arrival is released twice");
        released = true;
        this.released++;
        if (used) this.used++;
      },
    };
  }

  #fault(what: string): never {
    this.faults.push(what);
    throw new Error(what);
  }

  lend(): never {
    throw new Error("nothing is lent here");
  }

  has(): never {
    throw new Error("no test calls this");
  }

  find(): never {
    throw new Error("no test calls this");
  }

  eachKey(): never {
    throw new Error("no test calls this");
  }

  changesOf(): number {
    return 0;
  }

  usualBytes(): number {
    return this.usual;
  }
}

/** The checksum of the block with this digest, in every place. */
export function checksumOf(digest: Uint8Array): bigint {
  return new DataView(digest.buffer, digest.byteOffset, 8).getBigUint64(0, true) | 1n;
}
