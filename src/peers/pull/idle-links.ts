/** Links that brought blocks, and those over which only questions went. */
const PULLED_MAX = 128;
const ASKED_MAX = 64;

/** A way whose link nobody uses now. */
interface IdleWay {
  drop(): Promise<void>;
}

/**
 * Links that nobody uses stay open for the next one, but no more than this host and those it asks
 * can bear, however many hosts there are. Those not used for longest are closed, and a link that
 * brought blocks does not give way to one that was opened for a question.
 */
export class IdleLinks {
  readonly #pulled = new Set<IdleWay>();
  readonly #asked = new Set<IdleWay>();

  get count(): number {
    return this.#pulled.size + this.#asked.size;
  }

  /** Nobody uses its link any more. `pulled`: the link brought blocks. */
  enter(way: IdleWay, pulled: boolean): void {
    this.leave(way);
    const [ways, max] = pulled ? [this.#pulled, PULLED_MAX] : [this.#asked, ASKED_MAX];
    ways.add(way);
    const [oldest] = ways;
    if (ways.size <= max || oldest === undefined) return;
    ways.delete(oldest);
    void oldest.drop();
  }

  /** Its link is used, or over. */
  leave(way: IdleWay): void {
    this.#pulled.delete(way);
    this.#asked.delete(way);
  }
}
