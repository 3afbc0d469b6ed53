import { expect, test } from "bun:test";
import type { Answer, Step } from "./kit/client.ts";
import { compare, compareChats, interval95, quantile } from "./kit/compare.ts";
import { Chats, Workload } from "./kit/conversations.ts";
import { connectorFigures, Metrics } from "./kit/metrics.ts";
import { distinctBlocks, Prompts, servableBlocks } from "./kit/prompts.ts";
import { restoredShare } from "./kit/stages.ts";

const VOCABULARY = 2_048;

function answer(steps: readonly Step[], cachedTokens = 0): Answer {
  const times = { firstTokenMs: 1, totalMs: 1, transferParams: null };
  return { steps, cachedTokens, promptTokens: 0, ...times };
}

const step = (token: number, second: number): Step => ({
  ...{ token, logprob: -1, best: [-1, second] },
});

test("a different token at a clear step is wrong, at a tie it is reported apart", () => {
  const wanted = [answer([step(1, -3)]), answer([step(1, -1.00005)]), answer([step(1, -3)])];
  const found = [answer([step(2, -3)]), answer([step(2, -1)]), answer([step(1, -3)])];
  expect(compare(wanted, found)).toMatchObject({ answers: 3, equal: 1, ties: 1, wrong: [0] });
});

test("a tie ends the comparison of its own conversation and excuses no other one", () => {
  const [clear, tied] = [answer([step(1, -3)]), answer([step(1, -1.00005)])];
  const [other, same] = [answer([step(2, -3)]), answer([step(1, -3)])];
  const wanted = new Map([
    [0, [tied, clear]],
    [1, [clear, clear]],
    [2, [clear, clear]],
  ]);
  const found = new Map([
    [0, [other, other]],
    [1, [same, other]],
    [2, [same, same]],
  ]);
  expect(compareChats(wanted, found)).toEqual({ ties: 1, wrong: ["1.1"], compared: 5 });
});

test("an answer that ends early is wrong", () => {
  expect(compare([answer([step(1, -3), step(2, -3)])], [answer([step(1, -3)])]).wrong).toEqual([0]);
});

test("the 95 % interval of ten values uses Student's t with nine degrees of freedom", () => {
  const { mean, low, high } = interval95([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  expect(mean).toBe(5.5);
  expect(low).toBeCloseTo(3.334, 3);
  expect(high).toBeCloseTo(7.666, 3);
});

test("the 99th percentile of 100 values is the largest", () => {
  const values = Array.from({ length: 100 }, (_, index) => index + 1);
  expect(quantile(values, 0.99)).toBe(100);
  expect(quantile(values, 0.5)).toBe(51);
});

test("equal seeds give equal prompts within the bounds, a third of which share a prefix", () => {
  const prompts = new Prompts(3, VOCABULARY).mixed(60, 200, 6_000);
  expect(prompts).toEqual(new Prompts(3, VOCABULARY).mixed(60, 200, 6_000));
  expect(prompts.every(({ length }) => length >= 200 && length <= 6_000)).toBe(true);
  const blocks = prompts.reduce((sum, prompt) => sum + servableBlocks(prompt), 0);
  expect(distinctBlocks(prompts)).toBeLessThan(blocks * 0.9);
});

test("blocks are distinct if their tokens or any token before them differ", () => {
  const prompt = Array.from({ length: 97 }, (_, index) => index);
  const changed = [999, ...prompt.slice(1)];
  expect(servableBlocks(prompt)).toBe(3);
  expect(servableBlocks(prompt.slice(0, 96))).toBe(2);
  expect(distinctBlocks([prompt, prompt])).toBe(3);
  expect(distinctBlocks([prompt, changed])).toBe(6);
});

test("a block that is computed lowers the restored share", () => {
  const prompt = Array.from({ length: 129 }, (_, index) => index);
  expect(restoredShare([prompt, prompt], [answer([], 128), answer([], 128)])).toBe(1);
  expect(restoredShare([prompt, prompt], [answer([], 96), answer([], 128)])).toBe(0.75);
});

test("connector figures leave out buckets and vLLM's own labels", () => {
  const own = 'engine="0",model_name="tiny"';
  const page = [
    "# HELP x y",
    `vllm:hearth_lookups_total{${own},outcome="hit"} 3`,
    `vllm:hearth_lookups_created{${own},outcome="hit"} 1.7e9`,
    `vllm:hearth_load_seconds_bucket{${own},le="0.1"} 2`,
    `vllm:hearth_load_seconds_sum{${own}} 0.25`,
    "other 1",
  ];
  const metrics = new Metrics(page.join("\n"));
  expect(metrics.sum("vllm:hearth_lookups_total", 'outcome="hit"')).toBe(3);
  expect(connectorFigures(metrics)).toEqual({
    'lookups_total{outcome="hit"}': 3,
    load_seconds_sum: 0.25,
  });
});

test("a conversation's prompt holds its system prompt, questions and answers in order", () => {
  const shape = { conversations: 2, turns: 2, systems: 1, systemTokens: 4 };
  const workload = new Workload(new Prompts(1, VOCABULARY), { ...shape, turnTokens: [2, 2] });
  const chats = new Chats(workload);
  const first = chats.ask(0, 0);
  chats.take(0, answer([step(77, -3)]));
  expect(first).toEqual([...workload.system(0), ...workload.question(0, 0)]);
  expect(chats.ask(0, 1)).toEqual([...first, 77, ...workload.question(0, 1)]);
});
