interface Spare {
  readonly path: string;
  /** As the file system counts them. */
  readonly bytes: number;
}

/**
 * Files of evicted blocks that wait to be overwritten by blocks of the same length: a drive takes
 * new bytes in old places several times faster than in new ones. Each has the name of a leftover,
 * so that nobody ever takes it for a block, and what a crash leaves of it is removed at the start.
 */
export class SpareFiles {
  /** By the length of the file. */
  readonly #files = new Map<number, Spare[]>();
  readonly #coming = new Map<number, number>();
  #bytes = 0;
  #comingCount = 0;
  #named = 0;

  /** What the spare files take, and those that are being renamed to become spare. */
  get bytes(): number {
    return this.#bytes;
  }

  get areComing(): boolean {
    return this.#comingCount > 0;
  }

  /** Whether there ever was one in this run. */
  get areUsed(): boolean {
    return this.#named > 0;
  }

  /** Of this length, those that are there and those to come. */
  countOf(fileBytes: number): number {
    return (this.#files.get(fileBytes)?.length ?? 0) + (this.#coming.get(fileBytes) ?? 0);
  }

  /** The name under which the file at `path` is to wait: its folder stays the same. */
  nameFor(path: string): string {
    const folder = path.slice(0, path.lastIndexOf("/"));
    return `${folder}/.${(this.#named++).toString(36)}.tmp`;
  }

  expect(fileBytes: number, bytes: number): void {
    this.#coming.set(fileBytes, (this.#coming.get(fileBytes) ?? 0) + 1);
    this.#comingCount++;
    this.#bytes += bytes;
  }

  /** What was expected is there under `path`, or, where that is null, will not come. */
  came(fileBytes: number, bytes: number, path: string | null): void {
    this.#coming.set(fileBytes, this.#coming.get(fileBytes)! - 1);
    this.#comingCount--;
    if (path === null) {
      this.#bytes -= bytes;
      return;
    }
    const files = this.#files.get(fileBytes) ?? [];
    files.push({ path, bytes });
    this.#files.set(fileBytes, files);
  }

  /** One of this length, no longer spare; null where there is none. */
  take(fileBytes: number): Spare | null {
    const files = this.#files.get(fileBytes);
    const spare = files?.pop();
    if (files?.length === 0) this.#files.delete(fileBytes);
    if (spare === undefined) return null;
    this.#bytes -= spare.bytes;
    return spare;
  }

  /** One of any length but this; null where there is none. */
  takeOther(fileBytes: number): Spare | null {
    for (const length of this.#files.keys()) if (length !== fileBytes) return this.take(length);
    return null;
  }
}
