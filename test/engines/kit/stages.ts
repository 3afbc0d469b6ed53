import type { Answer, Question } from "./client.ts";
import { compare } from "./compare.ts";
import type { Sheet } from "./lane.ts";
import { BLOCK_TOKENS } from "./model.ts";
import { distinctBlocks, servableBlocks } from "./prompts.ts";

/** Smallest share of full blocks that a stage must restore. */
export const RESTORED_MIN = 0.95;

type Prompt = readonly number[];

/** Full blocks of each prompt that its engine computed. */
export function computedBlocks(prompts: readonly Prompt[], answers: readonly Answer[]): number[] {
  return prompts.map((prompt, index) => {
    const cached = Math.floor(answers[index]!.cachedTokens / BLOCK_TOKENS);
    return Math.max(0, servableBlocks(prompt) - cached);
  });
}

/**
 * Share of the distinct full blocks that a stage did not compute. Two requests that compute one
 * block at the same time count twice, so the share can only be too low.
 */
export function restoredShare(prompts: readonly Prompt[], answers: readonly Answer[]): number {
  const distinct = distinctBlocks(prompts);
  const computed = computedBlocks(prompts, answers).reduce((sum, blocks) => sum + blocks, 0);
  return (distinct - computed) / distinct;
}

/** Checks that no answer differs from the one at its place in `wanted`, but for ties. */
export function checkEqual(
  sheet: Sheet,
  title: string,
  wanted: readonly Answer[],
  found: readonly Answer[],
): void {
  const { wrong, ...figures } = compare(wanted, found);
  sheet.check(`${title}: all tokens equal`, wrong.length === 0, wrong, "no answer differs");
  sheet.figure(`${title}: answers`, figures);
}

export function checkRestored(
  sheet: Sheet,
  title: string,
  prompts: readonly Prompt[],
  answers: readonly Answer[],
): void {
  const share = restoredShare(prompts, answers);
  sheet.atLeast(`${title}: full blocks restored`, share, RESTORED_MIN);
}

export function questionsOf(prompts: readonly Prompt[], tokens: number): Question[] {
  return prompts.map((prompt) => ({ prompt, tokens }));
}
