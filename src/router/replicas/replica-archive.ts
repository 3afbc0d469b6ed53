import type { Bus } from "../../bus/index.ts";
import type { ResidencySource } from "../../events/index.ts";
import {
  BusArchive,
  type PictureAnswer,
  type RangeAnswer,
  type ResidencyArchive,
} from "../intake/index.ts";
import type { RouterId } from "./router-id.ts";
import type { ReplicaSubjects } from "./subjects.ts";

export interface ReplicaArchiveOptions {
  readonly bus: Bus;
  readonly subjects: ReplicaSubjects;
  /** Where ranges are asked, and pictures that no replica has. */
  readonly workers: ResidencyArchive;
  readonly answerMs: number;
  readonly pictureBlocksMax: number;
  /** A replica that has a whole picture of this run of the source; null: none is known to. */
  readonly holderOf: (source: ResidencySource) => RouterId | null;
}

/** Sources that were asked of a replica are remembered, so many. */
const ASKED_MAX = 65_536;

/**
 * Gets a source's first picture from another router where one has it, and all else from the
 * source. What was wrong once is asked of the source alone: it is the one that knows.
 */
export class ReplicaArchive implements ResidencyArchive {
  readonly #options: ReplicaArchiveOptions;
  readonly #asked = new Set<string>();
  /** Pictures that came from replicas. */
  taken = 0;

  constructor(options: ReplicaArchiveOptions) {
    this.#options = options;
  }

  range(
    source: ResidencySource,
    from: number,
    to: number,
    signal: AbortSignal,
  ): Promise<RangeAnswer> {
    return this.#options.workers.range(source, from, to, signal);
  }

  async picture(source: ResidencySource, signal: AbortSignal): Promise<PictureAnswer> {
    const router = this.#firstHolder(source);
    if (router !== null) {
      const answer = await this.#of(router).picture(source, signal);
      const isUsable =
        answer.kind === "picture" && answer.picture.source.incarnation === source.incarnation;
      if (isUsable) {
        this.taken++;
        return answer;
      }
    }
    return this.#options.workers.picture(source, signal);
  }

  #firstHolder(source: ResidencySource): RouterId | null {
    const name = `${source.worker}/${source.rank}/${source.incarnation}`;
    if (this.#asked.has(name)) return null;
    this.#asked.add(name);
    if (this.#asked.size > ASKED_MAX) this.#asked.delete(this.#asked.values().next().value!);
    return this.#options.holderOf(source);
  }

  #of(router: RouterId): BusArchive {
    const { bus, subjects, answerMs, pictureBlocksMax } = this.#options;
    const subjectOf = ({ worker, rank }: ResidencySource) =>
      subjects.pictureOf(router, worker, rank);
    return new BusArchive({ bus, subjectOf, answerMs, pictureBlocksMax });
  }
}
