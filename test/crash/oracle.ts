import { type Random, randomBelow } from "../../src/core/index.ts";
import { BLOCKS, type Content, contentOf, isTransient } from "./content.ts";

/** A content that was on its way to the agent, or is known to have come there. */
interface Version extends Content {
  /** The run of the agent to which its commit was sent. */
  readonly run: number;
  readonly sentAt: number;
  /** When the commit was acknowledged; null: never, so that it may be there or not. */
  committedAt: number | null;
  /** The latest run in which it was surely there. */
  seenIn: number;
}

export interface Purge {
  readonly ids: readonly number[];
  readonly sentAt: number;
}

export interface Persist {
  readonly versions: readonly Version[];
}

export type Verdict = "right" | "resurrected" | "wrong";

/** What addresses may answer, as it was when a request was sent. */
export interface Legal {
  readonly askedAt: number;
  readonly versions: ReadonlyMap<number, readonly Version[]>;
}

const REMEMBERED_DEAD = 8;

/**
 * Keeps the log of what was asked of the agent and what it acknowledged, and from that knows what
 * it may answer. Legal for an address is each content whose commit was sent, unless a purge of the
 * address was acknowledged afterwards: a commit that no answer came to may have happened, and of
 * two contents the agent may have kept the older on SSD. A miss is legal but for what `persist` has
 * acknowledged, where nothing is evicted.
 */
export class Oracle {
  #now = 0;
  #run = 0;
  readonly #legal: Version[][] = Array.from({ length: BLOCKS }, () => []);
  readonly #dead: Content[][] = Array.from({ length: BLOCKS }, () => []);
  readonly #kept = new Set<number>();
  /** Marks that were acknowledged: what they name is gone with the process. */
  #marks: { readonly purge: Purge; readonly isMarked: (at: number) => boolean }[] = [];
  /** When the latest purge of each address was sent. */
  readonly #purgedAt = new Float64Array(BLOCKS).fill(-1);

  get run(): number {
    return this.#run;
  }

  /** The agent is started again. What it may forget for want of room is not expected any more. */
  nextRun(keeps: boolean): void {
    for (const { purge, isMarked } of this.#marks.splice(0)) this.purgeAnswered(purge, isMarked);
    this.#run++;
    if (!keeps) this.#kept.clear();
  }

  /** The folders are empty: nothing may be there. */
  nextLife(): void {
    for (let id = 0; id < BLOCKS; id++) {
      this.#bury(id, this.#legal[id]!.splice(0));
    }
    this.#kept.clear();
    this.#marks = [];
  }

  legalOf(ids: readonly number[]): Legal {
    const versions = new Map(ids.map((id) => [id, [...this.#legal[id]!]]));
    return { askedAt: ++this.#now, versions };
  }

  /** What to write at an address next: what was there last, or other bytes. */
  choose(id: number, random: Random): Content {
    const all = [...this.#legal[id]!, ...this.#dead[id]!];
    const last = all.reduce((newest, { generation }) => Math.max(newest, generation), 0);
    return contentOf(id, last + randomBelow(random, 2));
  }

  commitSent(content: Content): Version {
    const { id, generation } = content;
    this.#dead[id] = this.#dead[id]!.filter((dead) => dead.generation !== generation);
    const sentAt = ++this.#now;
    const version = { ...content, run: this.#run, sentAt, committedAt: null, seenIn: -1 };
    this.#legal[id]!.push(version);
    return version;
  }

  commitAnswered(version: Version, stored: boolean): void {
    version.committedAt = ++this.#now;
    if (stored) this.#see(version, version.sentAt);
    else this.#legal[version.id] = this.#legal[version.id]!.filter((other) => other !== version);
  }

  purgeSent(ids: readonly number[]): Purge {
    const sentAt = ++this.#now;
    for (const id of ids) {
      this.#kept.delete(id);
      this.#purgedAt[id] = sentAt;
      for (const version of this.#legal[id]!) version.seenIn = -1;
    }
    return { ids, sentAt };
  }

  /** Whether the agent said that this address is on no tier, and will not be. */
  purgeAnswered({ ids, sentAt }: Purge, isGone: (at: number) => boolean): void {
    ids.forEach((id, at) => {
      if (!isGone(at)) return;
      const isOver = ({ run, committedAt }: Version) =>
        run < this.#run || (committedAt !== null && committedAt < sentAt);
      const all = this.#legal[id]!;
      this.#legal[id] = all.filter((version) => !isOver(version));
      this.#bury(id, all.filter(isOver));
    });
  }

  /** The agent said which of these are in RAM alone from now on: they do not outlive it. */
  markAnswered(purge: Purge, isMarked: (at: number) => boolean): void {
    this.#marks.push({ purge, isMarked });
  }

  /** What is there now and must be on SSD once `persist` is acknowledged. */
  persistSent(): Persist {
    const versions = this.#legal
      .flat()
      .filter(({ id, seenIn }) => seenIn === this.#run && !isTransient(id));
    return { versions };
  }

  persistAnswered({ versions }: Persist): void {
    for (const version of versions) {
      if (this.#legal[version.id]!.includes(version)) this.#kept.add(version.id);
    }
  }

  /** Somebody tampered with the block's file: a miss is legal again. */
  damaged(id: number): void {
    this.#kept.delete(id);
  }

  /** A miss of this address breaks a promise. */
  mustHave(id: number): boolean {
    return this.#kept.has(id);
  }

  get promised(): number {
    return this.#kept.size;
  }

  /**
   * Judges what an address answered. `before`: what was legal when it was asked; `isIt` says
   * whether the answer is this content.
   */
  judge(id: number, before: Legal, isIt: (content: Content) => boolean): Verdict {
    const legal = new Set([...this.#legal[id]!, ...before.versions.get(id)!]);
    for (const version of legal) {
      if (!isIt(version)) continue;
      this.#see(version, before.askedAt);
      return "right";
    }
    return this.#dead[id]!.some(isIt) ? "resurrected" : "wrong";
  }

  /** Whether an answer that something is there can be true. */
  mayExist(id: number, before: Legal): boolean {
    return this.#legal[id]!.length > 0 || before.versions.get(id)!.length > 0;
  }

  /** It was there after `since`, unless a purge crossed what says so. */
  #see(version: Version, since: number): void {
    if (this.#purgedAt[version.id]! < since) version.seenIn = this.#run;
  }

  #bury(id: number, versions: readonly Version[]): void {
    const dead = this.#dead[id]!;
    const known = new Set(dead.map(({ generation }) => generation));
    for (const version of versions) {
      if (!known.has(version.generation)) dead.push(version);
      known.add(version.generation);
    }
    dead.splice(0, dead.length - REMEMBERED_DEAD);
  }
}
