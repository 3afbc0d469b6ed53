/** `bun run test:router-chaos`: workers, routers and NATS that die, and events that do not come. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost } from "../../scripts/lib/native-build.ts";
import { findNatsServer } from "../../scripts/lib/nats-server.ts";
import { jsonOf, problemsOf, tableOf } from "./report.ts";
import { runChaos } from "./run.ts";

const HELP = `
Workers that publish what they hold, and routers that follow them, each a process of its own, over a
real nats-server. All the while 5 % of the events are lost, 5 % come twice and 10 % are overtaken.
In each round something dies, stands still or is cut off and comes back; within 2 s after that the
index of each router must equal what the workers really have, and all routers must count the same
requests. Memory is measured.

  bun run test:router-chaos                     20 rounds, each fault twice
  bun run test:router-chaos -- --rounds 90      more of them
  bun run test:router-chaos -- --minutes 10     as many as fit
  bun run test:router-chaos -- --seed 7         other prompts, victims and times
  bun run test:router-chaos -- --workers 12 --routers 4
  bun run test:router-chaos -- --within 4000    another limit, in milliseconds, for a busy host
  bun run test:router-chaos -- --json           the result as JSON on one line

Exit codes: 0 all is well; 1 a promise was broken; 2 wrong usage, or no nats-server.
`;

const options = scriptOptions(HELP, {
  rounds: { type: "string" },
  minutes: { type: "string" },
  seed: { type: "string", default: "1" },
  workers: { type: "string", default: "6" },
  routers: { type: "string", default: "3" },
  within: { type: "string", default: "2000" },
  json: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

function numberOf(name: "rounds" | "minutes" | "seed" | "workers" | "routers" | "within"): number {
  const value = Number(options[name]);
  if (Number.isFinite(value) && value >= 0) return value;
  return fail(`--${name} ${options[name]} is no number`);
}

const verdict = findNatsServer();
if (verdict.kind !== "ready") fail(verdict.why);
const native = await ensureHost();
if (native.kind === "failed" || native.kind === "skipped") fail(native.why);

const isTimed = options.minutes !== undefined;
const rounds = options.rounds === undefined ? (isTimed ? 1_000_000 : 20) : numberOf("rounds");
const [seed, withinMs] = [numberOf("seed"), numberOf("within")];
const [workers, routers] = [Math.max(1, numberOf("workers")), Math.max(1, numberOf("routers"))];
const done = await runChaos({
  ...{ seed, rounds, workers, routers, patienceMs: Math.max(10_000, withinMs) },
  untilMs: isTimed ? performance.now() + numberOf("minutes") * 60_000 : Number.POSITIVE_INFINITY,
  onRound: ({ number, fault, agreedMs }) =>
    process.stderr.write(`chaos: round ${number}, ${fault}: ${agreedMs ?? "never"} ms\n`),
});
console.log(options.json ? jsonOf(done, { seed, withinMs }) : tableOf(done, withinMs));
process.exit(problemsOf(done, withinMs).length > 0 ? 1 : 0);
