import { describe, expect, test } from "bun:test";
import type { PolicyMode } from "../../../src/router/index.ts";
import { BLOCK, done, MODEL, missing, namer, namesOf, PolicyKit, targetOf } from "./kit.ts";

const [OPEN, CLOSE] = [1, 2];
const on = (mode: PolicyMode = "on") => ({
  reasoning: { mode, models: { [MODEL]: { open: OPEN, close: CLOSE } } },
});

/** Names of blocks [from, to) of prompt and answer together. */
function names(prompt: number[], answer: number[], from: number, to: number): string[] {
  const tokens = Uint32Array.from([...prompt, ...answer]);
  const request = { model: MODEL, prompt: { kind: "tokens" as const, tokens } };
  return namer.chain(targetOf("w"), request)!.names(from, to);
}

const count = (from: number, to: number) =>
  Array.from({ length: to - from }, (_, at) => from + at + 100);

function answered(kit: PolicyKit, prompt: number[], answer: number[]): string {
  const tokens = Uint32Array.from(prompt);
  const id = kit.route(null, "", "w", { prompt: { kind: "tokens", tokens } });
  kit.policies.marks.answered(id, Uint32Array.from(answer));
  kit.free(id);
  return id;
}

describe("reasoning", () => {
  test("answer blocks entirely inside reasoning are marked", async () => {
    using kit = new PolicyKit(on());
    const prompt = count(0, 6);
    // Reasoning is at [7, 17): of the blocks of four, [8, 12) and [12, 16) are inside.
    const answer = [OPEN, ...count(6, 16), CLOSE, ...count(16, 24)];
    const id = answered(kit, prompt, answer);
    expect(kit.sent).toEqual([
      {
        worker: "w",
        command: { type: "Think", block_hashes: names(prompt, answer, 2, 4), transient: true },
      },
    ]);
    await kit.settle();
    expect(kit.actions.get(id)?.[0]?.outcome).toBe("1 done");
  });

  test("reasoning may start in the prompt and end with the answer", async () => {
    using kit = new PolicyKit(on());
    const prompt = [...count(0, 7), OPEN];
    answered(kit, prompt, [...count(8, 16), CLOSE, 7, 7, 7]);
    answered(kit, prompt, count(8, 20));
    answered(kit, [OPEN, ...count(0, 6), CLOSE], count(8, 20));
    expect(kit.sent.map(({ command }) => command.block_hashes)).toEqual([
      names(prompt, count(8, 16), 2, 4),
      names(prompt, count(8, 20), 2, 5),
    ]);
  });

  test("several ranges are one command and short ones none", async () => {
    using kit = new PolicyKit(on());
    const prompt = count(0, 4);
    const stretch = (from: number) => [OPEN, ...count(from, from + 7)];
    const answer = [...stretch(0), CLOSE, ...count(0, 3), ...stretch(20), CLOSE];
    answered(kit, prompt, answer);
    answered(kit, prompt, [OPEN, 7, 7, CLOSE, ...count(0, 20)]);
    expect(kit.sent.map(({ command }) => command.block_hashes)).toEqual([
      [...names(prompt, answer, 2, 3), ...names(prompt, answer, 5, 6)],
    ]);
  });

  test("a model without boundaries is ignored until a template gives them", async () => {
    using kit = new PolicyKit({ reasoning: { mode: "on", models: {} } });
    const answer = [OPEN, ...count(0, 20), CLOSE];
    answered(kit, count(0, 4), answer);
    expect(kit.sent).toEqual([]);
    kit.policies.marks.reasoningTokens(MODEL, { open: OPEN, close: CLOSE });
    answered(kit, count(0, 4), answer);
    expect(kit.sent).toHaveLength(1);
  });

  test("configured boundaries take precedence", async () => {
    using kit = new PolicyKit(on());
    kit.policies.marks.reasoningTokens(MODEL, { open: 100, close: 101 });
    answered(kit, count(0, 4), [OPEN, ...count(0, 20), CLOSE]);
    expect(kit.sent[0]?.command.block_hashes).toHaveLength(4);
  });

  test("blocks not stored yet are retried", async () => {
    using kit = new PolicyKit(on());
    kit.answer = () => (kit.sent.length === 1 ? missing(4) : done(4));
    const answer = [OPEN, ...count(0, 20), CLOSE];
    answered(kit, count(0, 4), answer);
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(2);
    kit.answer = () => missing(4);
    answered(kit, count(1, 5), answer);
    await kit.pass(60_000);
    expect(kit.sent).toHaveLength(5);
    expect(kit.counts("reasoning").declined).toEqual({ never_there: 1 });
  });

  test("answers waiting for blocks are limited", async () => {
    using kit = new PolicyKit({
      reasoning: { ...on().reasoning, pendingMax: 5, inFlightMax: 999 },
    });
    kit.answer = () => missing();
    for (let i = 0; i < 20; i++) answered(kit, count(i, i + 4), [OPEN, ...count(0, 20), CLOSE]);
    await kit.settle();
    expect(kit.counts("reasoning").declined).toEqual({ pending: 15 });
  });

  test("an answer without tokens is ignored", () => {
    using kit = new PolicyKit(on());
    const hashes = BigUint64Array.of(1n, 2n);
    const id = kit.route(null, "", "w", { prompt: { kind: "hashes", hashes } });
    kit.policies.marks.answered(id, Uint32Array.from([OPEN, ...count(0, 20), CLOSE]));
    expect(kit.sent).toEqual([]);
    expect(namesOf("a b")).toHaveLength(2);
    expect(BLOCK).toBe(4);
  });
});
