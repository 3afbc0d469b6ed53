import { loopTurns, type TurnSource } from "../core/index.ts";

/** Entries of processes without connections are dropped when there are as many. */
const ENTRIES_MAX = 1_024;

/** One source of work for each process: more connections win it no more time. */
export class ProcessTurns {
  /** A source lives as long as a connection that uses it. */
  readonly #sources = new Map<number, WeakRef<TurnSource>>();

  of(pid: number): TurnSource {
    const known = this.#sources.get(pid)?.deref();
    if (known !== undefined) return known;
    if (this.#sources.size >= ENTRIES_MAX) this.#dropUnused();
    const source = loopTurns.source();
    this.#sources.set(pid, new WeakRef(source));
    return source;
  }

  #dropUnused(): void {
    for (const [pid, source] of this.#sources) {
      if (source.deref() === undefined) this.#sources.delete(pid);
    }
  }
}
