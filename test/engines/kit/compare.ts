import type { Answer } from "./client.ts";

/** Two best log probabilities this close are a tie that the shape of a batch may decide. */
const TIE = 1e-4;

export interface Comparison {
  readonly answers: number;
  readonly equal: number;
  /** Answers that differ first at a step whose two best log probabilities are a tie. */
  readonly ties: number;
  /** Places of answers that differ otherwise. */
  readonly wrong: readonly number[];
  /** Largest difference of a log probability before the first different token. */
  readonly logprobDifference: number;
}

type Verdict = "equal" | "tie" | "wrong";

function compareOne(wanted: Answer, found: Answer): { verdict: Verdict; difference: number } {
  let difference = 0;
  for (const [index, step] of wanted.steps.entries()) {
    const other = found.steps[index];
    if (other?.token !== step.token) {
      const [first = 0, second = Number.NEGATIVE_INFINITY] = step.best;
      return { verdict: first - second <= TIE ? "tie" : "wrong", difference };
    }
    difference = Math.max(difference, Math.abs(step.logprob - other.logprob));
  }
  return { verdict: "equal", difference };
}

/** Compares each answer with the one at the same place of `wanted`. */
export function compare(wanted: readonly Answer[], found: readonly Answer[]): Comparison {
  const verdicts = found.map((answer, index) => compareOne(wanted[index]!, answer));
  return {
    answers: found.length,
    equal: verdicts.filter(({ verdict }) => verdict === "equal").length,
    ties: verdicts.filter(({ verdict }) => verdict === "tie").length,
    wrong: verdicts.flatMap(({ verdict }, index) => (verdict === "wrong" ? [index] : [])),
    logprobDifference: Math.max(0, ...verdicts.map(({ difference }) => difference)),
  };
}

export interface ChatComparison {
  /** Conversations that end at a tie: from then on their prompts differ. */
  readonly ties: number;
  /** Answers that were compared and are wrong, as `conversation.turn`. */
  readonly wrong: readonly string[];
  /** Answers that could be compared: those up to a conversation's first tie. */
  readonly compared: number;
}

/** Compares the answers of each conversation, turn by turn, up to its first difference. */
export function compareChats(
  wanted: ReadonlyMap<number, readonly Answer[]>,
  found: ReadonlyMap<number, readonly Answer[]>,
): ChatComparison {
  const wrong: string[] = [];
  let [ties, compared] = [0, 0];
  for (const [conversation, answers] of found) {
    for (const [turn, answer] of answers.entries()) {
      const { verdict } = compareOne(wanted.get(conversation)![turn]!, answer);
      compared += 1;
      if (verdict === "equal") continue;
      if (verdict === "tie") ties += 1;
      else wrong.push(`${conversation}.${turn}`);
      break;
    }
  }
  return { ties, wrong, compared };
}

/** `share` of the sorted values lie at or below the result; NaN without values. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN;
}

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Five significant digits. */
export function round(value: number): number {
  return Number.isInteger(value) ? value : Number(value.toPrecision(5));
}

/** Two-sided 95 % points of Student's t distribution, by degrees of freedom from 1 on. */
const T_95 = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145,
  2.131, 2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048,
  2.045, 2.042,
];

export interface Interval {
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** Mean of at least two values with its 95 % interval. */
export function interval95(values: readonly number[]): Interval {
  const middle = mean(values);
  const squares = values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
  const error = Math.sqrt(squares / (values.length - 1) / values.length);
  const half = (T_95[values.length - 2] ?? 1.96) * error;
  return { mean: middle, low: middle - half, high: middle + half };
}
