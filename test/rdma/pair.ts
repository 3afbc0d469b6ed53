import type { CaseResult } from "./lane.ts";
import type { Bed } from "./packages.ts";

export async function runPair(
  _bed: Bed,
  _folder: string,
  _tell: (result: CaseResult) => void,
): Promise<CaseResult[]> {
  return [];
}
