import { expect, test } from "bun:test";
import { createPolicyObserver } from "../../../src/app/router/index.ts";
import type { PolicyCounts, PolicyMarks } from "../../../src/router/index.ts";
import type { PromptSeen, ProxyObserver } from "../../../src/router/proxy/index.ts";

const SEEN = {
  requestId: "r",
  model: "m",
  loraName: null,
  cacheSalt: null,
  sessionId: "s",
  parentSessionId: null,
  isSessionEnd: true,
  tokens: null,
  marks: [{ tokens: 40, type: "ephemeral", ttlSeconds: 300 }],
  reasoning: { start: 7, end: 8 },
} as unknown as PromptSeen;

test("proxy observations reach the policies", () => {
  const told: unknown[][] = [];
  const names = ["cacheControl", "answered", "reasoningTokens", "sessionEnded"] as const;
  const entries = names.map((name) => [name, (...args: unknown[]) => told.push([name, ...args])]);
  const marks = Object.fromEntries(entries) as PolicyMarks;
  const counts: Pick<PolicyCounts, "policy">[] = [];
  const observers: ProxyObserver[] = [];
  const listen = (observer: ProxyObserver) => {
    observers.push(observer);
    return { [Symbol.dispose]: () => undefined };
  };
  createPolicyObserver({ listen }, { marks, counts: counts as PolicyCounts[] });
  const [observer] = observers;
  // Answers are read only for a policy that looks at them.
  expect(observer!.answered).toBeUndefined();
  counts.push({ policy: "reasoning" });
  observer!.prompt!(SEEN);
  observer!.prompt!({ ...SEEN, requestId: "t", isSessionEnd: false, cacheSalt: "a tenant!" });
  observer!.answered!("r", Uint32Array.of(1));
  const end = { how: "done", outputTokens: 1 } as const;
  observer!.ended!("r", end);
  observer!.ended!("t", end);
  const wanted = [{ promptTokens: 40, ttlMs: 300_000 }];
  expect(told).toEqual([
    ["reasoningTokens", "m", { open: 7, close: 8 }],
    ["cacheControl", "r", "api", wanted],
    ["reasoningTokens", "m", { open: 7, close: 8 }],
    ["cacheControl", "t", expect.stringMatching(/^tenant-[0-9a-f]+$/), wanted],
    ["answered", "r", Uint32Array.of(1)],
    ["sessionEnded", "s"],
  ]);
});
