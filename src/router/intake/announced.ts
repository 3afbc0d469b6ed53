import type { KeySpace, ResidencySource } from "../../observability/activity/index.ts";
import type { Target, WorkerSpec } from "../workers.ts";

/** Null: nothing says which model it serves. What the table knows of it already stands. */
export function announcedSpec(
  { worker, rank }: ResidencySource,
  spaces: readonly KeySpace[],
  known: Target | null,
): WorkerSpec | null {
  const model = known?.model ?? spaces[0]?.model;
  if (model === undefined) return null;
  return {
    ...{ worker, rank, model, spaces },
    role: known?.role ?? "both",
    url: known?.url ?? null,
    totalBlocks: known?.totalBlocks ?? null,
    batchTokensMax: known?.batchTokensMax ?? null,
  };
}

/** Those it says it has now, and those that it never spoke of: the configuration named them. */
export function spacesWith(
  known: readonly KeySpace[],
  saidBefore: readonly KeySpace[],
  said: readonly KeySpace[],
): readonly KeySpace[] {
  const others = known.filter((space) => !includes(saidBefore, space) && !includes(said, space));
  return [...others, ...said];
}

export function sameSpaces(a: readonly KeySpace[], b: readonly KeySpace[]): boolean {
  return a.length === b.length && b.every((space) => includes(a, space));
}

export function includes(spaces: readonly KeySpace[], one: KeySpace): boolean {
  const name = nameOf(one);
  return spaces.some((space) => nameOf(space) === name);
}

function nameOf(space: KeySpace): string {
  const key = space.kind === "blocks" ? space.namespaceKey.toHex() : "";
  const chain = space.kind === "blocks" ? (space.chain ?? "") : "";
  return `${space.kind} ${space.blockTokens} ${key} ${space.model} ${chain}`;
}
