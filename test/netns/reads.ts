import { systemClock } from "../../src/core/index.ts";
import type { Fleet } from "./fleet.ts";

/** Results of reading blocks that other hosts have. */
export interface ReadTally {
  reads: number;
  hits: number;
  misses: number;
  wrong: number;
  slowestMs: number;
  /** The first that did not come, for people. */
  readonly missed: string[];
}

const MISSED_MAX = 10;

export function newTally(): ReadTally {
  return { reads: 0, hits: 0, misses: 0, wrong: 0, slowestMs: 0, missed: [] };
}

/** Some of a holder's blocks are there for one asker alone, and are read once. */
interface Share {
  stored: number;
  next: number;
}

/** Blocks that nobody but their holder has, until they are read. */
export class Reads {
  readonly #fleet: Fleet;
  readonly #shares = new Map<string, Share>();
  readonly total = newTally();

  constructor(fleet: Fleet) {
    this.#fleet = fleet;
  }

  /** Makes sure that the holder has `count` blocks for each other host. */
  async prepare(holder: number, count: number): Promise<void> {
    const { family } = this.#fleet.host(holder);
    const names: string[] = [];
    for (let asker = 0; asker < this.#fleet.size; asker++) {
      if (asker === holder) continue;
      const share = this.#share(asker, family);
      while (share.stored < share.next + count) names.push(nameOf(asker, family, share.stored++));
    }
    await this.#fleet.fill(holder, names);
  }

  #share(asker: number, family: string): Share {
    const key = `${asker} ${family}`;
    const share = this.#shares.get(key) ?? { stored: 0, next: 0 };
    this.#shares.set(key, share);
    return share;
  }

  /** One block of `family`, which need not be there any more; whether it came. */
  async one(asker: number, family: string, tally: ReadTally): Promise<boolean> {
    const name = nameOf(asker, family, this.#share(asker, family).next++);
    const startMs = systemClock.monotonicMs();
    const [outcome] = await this.#fleet.host(asker).engine.get(name);
    const ms = systemClock.monotonicMs() - startMs;
    for (const one of [tally, this.total]) {
      one.reads++;
      one.slowestMs = Math.max(one.slowestMs, Math.round(ms));
      if (outcome === "ok") one.hits++;
      else if (outcome === "wrong bytes") one.wrong++;
      else one.misses++;
      if (outcome !== "ok" && one.missed.length < MISSED_MAX) {
        one.missed.push(`${asker} of ${name}: ${outcome} after ${Math.round(ms)} ms`);
      }
    }
    return outcome === "ok";
  }

  /** So many blocks of each holder for each asker, where `wanted` says so; side by side. */
  async across(
    count: number,
    tally: ReadTally,
    wanted: (asker: number, holder: number) => boolean = () => true,
  ): Promise<void> {
    const hosts = Array.from({ length: this.#fleet.size }, (_, host) => host);
    for (const holder of hosts) await this.prepare(holder, count);
    const rounds = hosts.map(async (asker) => {
      for (let i = 0; i < count; i++) {
        for (const holder of hosts) {
          if (holder === asker || !wanted(asker, holder)) continue;
          await this.one(asker, this.#fleet.host(holder).family, tally);
        }
      }
    });
    await Promise.all(rounds);
  }

  /**
   * Milliseconds until asker gets a block of holder again; null: not within `boundMs`. A block that
   * came late counts as late.
   */
  async recovery(
    asker: number,
    holder: number,
    tally: ReadTally,
    boundMs: number,
  ): Promise<number | null> {
    const { family } = this.#fleet.host(holder);
    const startMs = systemClock.monotonicMs();
    for (;;) {
      const isBack = await this.one(asker, family, tally);
      const ms = systemClock.monotonicMs() - startMs;
      if (isBack) return Math.round(ms);
      if (ms > boundMs) return null;
      await Bun.sleep(PAUSE_MS);
    }
  }
}

/** Long enough that the blocks last. */
const PAUSE_MS = 120;

function nameOf(asker: number, family: string, index: number): string {
  return `${family}-for-${asker}-${index}`;
}
