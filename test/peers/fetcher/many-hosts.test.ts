import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { Summaries } from "../../../src/peers/directory/index.ts";
import { PullKit } from "./pull-kit.ts";

const HOSTS = 300;
/** Maximum idle connections that carried only short requests, and that delivered blocks. */
const ASKED_MAX = 64;
const PULLED_MAX = 128;
const names = Array.from({ length: HOSTS }, (_, i) => `w${i}`);

function openLinks(kit: PullKit): string[] {
  return [...kit.hosts.values()].filter(({ links }) => links.size > 0).map(({ worker }) => worker);
}

async function ask(kit: PullKit, name: string): Promise<void> {
  const request = { op: "summary" as const, namespace: new Uint8Array(32), known: 0n };
  const options = { deadlineMs: 1_000, signal: new AbortController().signal };
  await kit.settle(kit.puller.ask(name as WorkerId, request, options));
}

test("connections that carried only short requests are few, and the latest ones", async () => {
  await using kit = new PullKit({ hosts: names });
  for (const name of names) await ask(kit, name);
  expect(openLinks(kit)).toEqual(names.slice(-ASKED_MAX));
  await ask(kit, names[HOSTS - ASKED_MAX]!);
  await ask(kit, "w0");
  const [again, ...later] = names.slice(-ASKED_MAX);
  expect(openLinks(kit)).toEqual(["w0", again!, ...later.slice(1)]);
  await kit.clock.advanceAsync(61_000, 1_000);
  expect(openLinks(kit)).toEqual([]);
});

test("connections that delivered blocks have their own bound", async () => {
  await using kit = new PullKit({ hosts: names, limits: { namespaceBytesMax: 1e9 } });
  const pull = (name: string, i: number) =>
    kit.kinds(kit.pull([i], { sources: [name as WorkerId] }));
  await pull("w0", 0);
  for (const name of names.slice(1)) await ask(kit, name);
  expect(openLinks(kit)).toEqual(["w0", ...names.slice(-ASKED_MAX)]);
  for (const [i, name] of names.entries()) expect(await pull(name, 1_000 + i)).toEqual(["ok"]);
  expect(openLinks(kit)).toEqual(names.slice(-PULLED_MAX));
});

test("a connection in use is never closed for others", async () => {
  await using kit = new PullKit({ hosts: names });
  kit.host("w0").behave = () => ({ answer: "came", afterMs: 1_900 });
  const slow = kit.pull([1], { sources: ["w0" as WorkerId] });
  for (const name of names.slice(1)) await ask(kit, name);
  expect(await kit.kinds(slow)).toEqual(["ok"]);
  expect(kit.host("w0").dials).toBe(1);
});

test("summaries of many hosts are fetched a few at a time, and all are", async () => {
  await using kit = new PullKit({ hosts: names });
  const asked = new Set<string>();
  let questions = 0;
  const summaries = new Summaries({
    members: kit.members,
    clock: kit.clock,
    log: () => undefined,
    everyMs: 3_000,
    mayAsk: (worker) => kit.puller.mayAsk(worker),
    call: (worker, request, options) => {
      questions++;
      asked.add(worker);
      return kit.puller.ask(worker, request, options);
    },
    namespaces: () => [new Uint8Array(32).fill(1)],
  });
  let linksMax = 0;
  for (let rounds = 1; asked.size < HOSTS; rounds++) {
    expect(rounds).toBeLessThanOrEqual(Math.ceil(HOSTS / 32) + 1);
    await kit.clock.advanceAsync(3_000, 50);
    linksMax = Math.max(linksMax, openLinks(kit).length);
    expect(questions).toBeLessThanOrEqual(32 * (rounds + 1));
  }
  expect(linksMax).toBeLessThanOrEqual(ASKED_MAX);
  await kit.settle(Promise.resolve(summaries[Symbol.asyncDispose]()));
});
