import type { ResidencySource } from "../../observability/activity/index.ts";
import type { PictureAnswer, RangeAnswer, ResidencyArchive } from "./feed.ts";

/** Gives pictures, and nothing else. */
export type PictureGiver = Pick<ResidencyArchive, "picture">;

/** Runs of sources that were asked for there are remembered, so many. */
const ASKED_MAX = 65_536;

/**
 * Gets the first picture of each run of a source from somewhere else, where that has one, and all
 * else from `rest`: what was wrong or too old once is not taken from there again.
 */
export class FirstArchive implements ResidencyArchive {
  readonly #first: (source: ResidencySource) => PictureGiver | null;
  readonly #rest: ResidencyArchive;
  readonly #asked = new Set<string>();
  /** Pictures that came from the first. */
  taken = 0;

  constructor(first: (source: ResidencySource) => PictureGiver | null, rest: ResidencyArchive) {
    this.#first = first;
    this.#rest = rest;
  }

  range(
    source: ResidencySource,
    from: number,
    to: number,
    signal: AbortSignal,
  ): Promise<RangeAnswer> {
    return this.#rest.range(source, from, to, signal);
  }

  async picture(source: ResidencySource, signal: AbortSignal): Promise<PictureAnswer> {
    const answer = await this.#giverOnce(source)?.picture(source, signal);
    const isOfRun =
      answer?.kind === "picture" && answer.picture.source.incarnation === source.incarnation;
    if (!isOfRun) return this.#rest.picture(source, signal);
    this.taken++;
    return answer;
  }

  #giverOnce(source: ResidencySource): PictureGiver | null {
    const name = `${source.worker}/${source.rank}/${source.incarnation}`;
    if (this.#asked.has(name)) return null;
    const giver = this.#first(source);
    if (giver === null) return null;
    this.#asked.add(name);
    if (this.#asked.size > ASKED_MAX) this.#asked.delete(this.#asked.values().next().value!);
    return giver;
  }
}
