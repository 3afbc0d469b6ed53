import { expect, test } from "bun:test";
import fc from "fast-check";
import { POLICY_DEFAULTS } from "../../../src/router/index.ts";
import {
  BlockUses,
  type PromptChain,
  RecentPrefixes,
  SessionTable,
} from "../../../src/router/policies/index.ts";
import { MODEL, namer, targetOf, tokensOf } from "./kit.ts";

const TARGET = targetOf("w");

function requestOf(text: string, sessionId?: string, requestId = "r") {
  const prompt = { kind: "tokens" as const, tokens: tokensOf(text) };
  return { model: MODEL, requestId, prompt, ...(sessionId === undefined ? {} : { sessionId }) };
}

const chainOf = (text: string): PromptChain => namer.chain(TARGET, requestOf(text))!;

/** Prompts of few words, so that they share beginnings. */
const prompt = fc
  .array(fc.constantFrom("a", "b"), { minLength: 1, maxLength: 6 })
  .map((words) => words.join(" "));

test("block use counts equal a plain map", () => {
  const step = fc.record({ text: prompt, isRemoval: fc.boolean() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const uses = new BlockUses();
      const literal: string[] = [];
      for (const { text, isRemoval } of steps) {
        const at = literal.indexOf(text);
        if (isRemoval && at < 0) continue;
        const chain = chainOf(text);
        if (isRemoval) literal.splice(at, 1);
        else literal.push(text);
        if (isRemoval) uses.remove(chain, 0, chain.blocks);
        else uses.add(chain, 0, chain.blocks);
        const words = text.split(" ");
        const counts = words.map((_, block) => {
          const prefix = `${words.slice(0, block + 1).join(" ")} `;
          return literal.filter((other) => `${other} `.startsWith(prefix)).length;
        });
        expect(words.map((_, block) => uses.of(chain, block))).toEqual(counts);
        const free = counts.indexOf(0);
        expect(uses.firstFree(chain)).toBe(free < 0 ? words.length : free);
      }
    }),
    { numRuns: 200 },
  );
});

test("many blocks grow the table and leave it again", () => {
  const uses = new BlockUses();
  const chains = Array.from({ length: 300 }, (_, i) => chainOf(`x${i} ${"y ".repeat(30)}`));
  for (const chain of chains) uses.add(chain, 0, chain.blocks);
  expect(uses.size).toBe(300 * 31);
  expect(chains.every((chain) => uses.of(chain, 30) === 1)).toBe(true);
  for (const chain of chains) uses.remove(chain, 0, chain.blocks);
  expect([uses.size, uses.of(chains[7]!, 3)]).toEqual([0, 0]);
});

test("the unshared blocks of a session equal a literal model", () => {
  const turn = fc.record({ session: fc.constantFrom("s", "t", "u", null), text: prompt });
  fc.assert(
    fc.property(fc.array(turn, { maxLength: 25 }), (turns) => {
      const settings = { ...POLICY_DEFAULTS.sessions, slackTokens: 0, branchesMax: 3 };
      const table = new SessionTable(settings, () => undefined);
      for (const [at, { session, text }] of turns.entries()) {
        const chain = chainOf(text);
        table.note(requestOf(text, session ?? undefined, `r${at}`), TARGET, chain, at);
        for (const known of table.all()) {
          const others = [...table.all()].filter((other) => other !== known);
          const unnamed = turns.slice(0, at + 1).filter((each) => each.session === null);
          const shared = [
            ...others.flatMap(({ branches }) => branches.map((branch) => branch.chain)),
            ...unnamed.map((each) => chainOf(each.text)),
          ];
          for (const branch of known.branches) {
            const most = shared.map((other) => other.common(branch.chain));
            expect(table.ownFrom(known, branch)).toBe(Math.max(0, ...most));
          }
        }
      }
    }),
    { numRuns: 100 },
  );
});

test("the session table is bounded and an evicted session leaves nothing behind", () => {
  const dropped: (string | null)[] = [];
  const settings = { ...POLICY_DEFAULTS.sessions, blocksMax: 60, sessionsMax: 8, sessionMs: 1_000 };
  const table = new SessionTable(settings, ({ id }) => dropped.push(id));
  for (let i = 0; i < 200; i++) {
    const session = i % 3 === 0 ? undefined : `s${i}`;
    const text = `sys w${i} x y z`;
    table.note(requestOf(text, session, `r${i}`), TARGET, chainOf(text), i);
    expect(table.sessions).toBeLessThanOrEqual(8);
    expect(table.blocks).toBeLessThanOrEqual(60);
  }
  expect(dropped.length).toBeGreaterThan(100);
  expect(table.isComplete(200)).toBe(false);
  table.expire(1e9);
  expect([table.sessions, table.blocks]).toEqual([0, 0]);
  expect(table.firstFree(chainOf("sys w199"))).toBe(0);
  expect(table.isComplete(1e9)).toBe(true);
});

test("recent prefixes are bounded, decay, and keep shared ones under a flood", () => {
  const prefixes = new RecentPrefixes(512);
  const sys = Array.from({ length: 20 }, (_, i) => `sys${i}`).join(" ");
  for (let i = 0; i < 400; i++) {
    prefixes.note(chainOf(`${sys} u${i} v w`), 0, TARGET.worker, i * 1_000);
    prefixes.note(chainOf(`alone${i} x y z`), 0, TARGET.worker, i * 1_000);
    expect(prefixes.size).toBeLessThanOrEqual(512);
  }
  const best = prefixes.best(3, 400_000);
  expect(best.map(({ block }) => block)).toEqual(Array.from({ length: 20 }, (_, i) => i));
  expect(best[0]!.names).toEqual(chainOf(sys).names(0, 1));
  // Nothing of it for some generations.
  for (const minutes of [20, 40]) {
    prefixes.note(chainOf("other"), 0, TARGET.worker, minutes * 60_000);
  }
  expect(prefixes.best(3, 50 * 60_000)).toEqual([]);
});
