import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { type Random, randomBelow } from "../../src/core/index.ts";

/** A place at which the agent ends itself. */
export interface PlannedKill {
  readonly name: string;
  readonly action: "kill" | "kill-after";
}

/** The native side names each system call of the disk in one list. */
function nativeNames(): string[] {
  const source = readFileSync(join(ROOT, "zig/base/faults.zig"), "utf8");
  const list = /pub const Point = enum \{(.*?)\n\};/s.exec(source)![1]!;
  return [...list.matchAll(/@"([a-z.]+)"/g)].map(([, name]) => name!);
}

/** The TypeScript side names its points where they are. */
function sourceNames(): string[] {
  const files = readdirSync(join(ROOT, "src"), { recursive: true, encoding: "utf8" });
  return files
    .filter((file) => file.endsWith(".ts"))
    .flatMap((file) => [
      ...readFileSync(join(ROOT, "src", file), "utf8").matchAll(/crashPoint\("([a-z.-]+)"\)/g),
    ])
    .map(([, name]) => name!);
}

export function knownKills(): PlannedKill[] {
  const around = (name: string): PlannedKill[] => [
    { name, action: "kill" },
    { name, action: "kill-after" },
  ];
  const here = (name: string): PlannedKill[] => [{ name, action: "kill" }];
  return [...nativeNames().flatMap(around), ...sourceNames().flatMap(here)];
}

/** What must fail so that the agent comes to a point at all: hosts that offer less. */
const NEEDS: Readonly<Record<string, string>> = {
  "store.name": "open.proc:1+:EACCES;",
  "store.unlink": "open.proc:1+:EACCES;",
  "rename.link": "rename.rename:1+:EINVAL;",
  "rename.unlink": "rename.rename:1+:EINVAL;",
};

const NTH_GROWTH = 4;
const NTH_MAX = 2_000;

interface Progress {
  readonly kill: PlannedKill;
  /** The hit at which it happens is chosen below this. */
  nthMax: number;
  reached: number;
}

/**
 * Goes round all points, again and again, in an order of its own for each seed. How often a point
 * is come to in a cycle is not known: the hit that counts is the first, then chosen from more and
 * more while it is reached, and from fewer while it is not.
 */
export class KillPlan {
  readonly #all: Progress[];
  /** Come every other turn. */
  readonly #favoured: Progress[];
  #next = 0;

  constructor(only: string | null, random: Random, favours = (_: string) => false) {
    const kills = knownKills().filter(({ name }) => only === null || name === only);
    this.#all = shuffled(kills, random).map((kill) => ({ kill, nthMax: 1, reached: 0 }));
    this.#favoured = this.#all.filter(({ kill }) => favours(kill.name));
  }

  get known(): number {
    return this.#all.length;
  }

  get reached(): number {
    return this.#all.filter(({ reached }) => reached > 0).length;
  }

  get unreached(): string[] {
    return this.#all
      .filter(({ reached }) => reached === 0)
      .map(({ kill }) => `${kill.name}:${kill.action}`);
  }

  #turn(): Progress {
    const turn = this.#next++;
    const favoured = this.#favoured;
    if (favoured.length === 0) return this.#all[turn % this.#all.length]!;
    const ring = turn % 2 === 0 ? favoured : this.#all;
    return ring[(turn >> 1) % ring.length]!;
  }

  next(random: Random): {
    readonly kill: PlannedKill;
    readonly plan: string;
    ended(there: boolean): void;
  } {
    const progress = this.#turn();
    const { kill, nthMax } = progress;
    const nth = 1 + randomBelow(random, nthMax);
    return {
      kill,
      plan: `${NEEDS[kill.name] ?? ""}${kill.name}:${nth}:${kill.action}`,
      ended(there) {
        if (there) progress.reached++;
        progress.nthMax = there ? Math.min(NTH_MAX, nthMax * NTH_GROWTH) : Math.max(1, nthMax >> 1);
      },
    };
  }
}

function shuffled<T>(items: readonly T[], random: Random): T[] {
  const left = [...items];
  return items.map(() => left.splice(randomBelow(random, left.length), 1)[0]!);
}
