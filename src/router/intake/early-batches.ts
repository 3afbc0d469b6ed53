import type { ResidencyBatch } from "../../observability/activity/index.ts";
import { hashesIn } from "./pending.ts";

/** Sources that are waited for; of more, the one that waits for longest is given up. */
const SOURCES_MAX = 256;
const HASHES_MAX = 2 ** 20;

/**
 * Batches of sources of which no heartbeat came yet: a stream gives what it kept before anybody
 * says that he is there. Where there is no room the oldest go; they are asked for later.
 */
export class EarlyBatches {
  readonly #sources = new Map<string, ResidencyBatch[]>();
  #hashes = 0;

  get hashes(): number {
    return this.#hashes;
  }

  add(name: string, batch: ResidencyBatch): void {
    const batches = this.#sources.get(name) ?? [];
    this.#sources.set(name, batches);
    batches.push(batch);
    this.#hashes += hashesIn(batch);
    if (this.#sources.size > SOURCES_MAX) this.take(this.#sources.keys().next().value!);
    while (this.#hashes > HASHES_MAX) {
      const [oldest, waiting] = this.#sources.entries().next().value!;
      this.#hashes -= hashesIn(waiting.shift()!);
      if (waiting.length === 0) this.#sources.delete(oldest);
    }
  }

  /** Those of one source, in the order in which they came; they wait no more. */
  take(name: string): readonly ResidencyBatch[] {
    const batches = this.#sources.get(name) ?? [];
    this.#sources.delete(name);
    for (const batch of batches) this.#hashes -= hashesIn(batch);
    return batches;
  }
}
