import { defineLane, needNative, needNats, whole } from "../support/lane.ts";
import { problemsOf, reportOf, tableOf } from "./report.ts";
import { runChaos } from "./run.ts";

/** Time that a round is given to agree, for a report of how late it was. */
const ROUND_MS_MIN = 10_000;

export const lane = defineLane({
  help: `
Starts workers that publish their blocks and routers that follow them, each a process of its own,
over a real nats-server. Throughout, 5 % of the events are lost, 5 % come twice and 10 % are
reordered. In each round something dies, hangs or is cut off and returns; within 2 s after that the
index of each router must equal what the workers really have, and all routers must count the same
requests. Memory is measured.

  ./dev test:router-chaos                     20 rounds, each fault twice
  ./dev test:router-chaos --rounds 90         more of them
  ./dev test:router-chaos --minutes 10        as many as fit
  ./dev test:router-chaos --seed 7            other prompts, victims and times
  ./dev test:router-chaos --workers 12 --routers 4
  ./dev test:router-chaos --within 4000       another limit, in milliseconds, for a busy host
  ./dev test:router-chaos --json              the result as JSON on one line

Exit codes: 0 all is well, or skipped; 1 a promise was broken; 2 wrong usage.
`,
  options: {
    rounds: whole(1),
    minutes: whole(1),
    seed: whole(0, 1),
    workers: whole(1, 6),
    routers: whole(1, 3),
    within: whole(1, 2_000),
  },
  async run({ minutes, seed, workers, routers, within: withinMs, ...given }, host) {
    await needNats();
    await needNative();
    const rounds = given.rounds ?? (minutes === null ? 20 : Number.MAX_SAFE_INTEGER);
    const untilMs =
      minutes === null ? Number.POSITIVE_INFINITY : performance.now() + minutes * 60_000;
    const done = await runChaos({
      ...{ seed, rounds, workers, routers, untilMs },
      patienceMs: Math.max(ROUND_MS_MIN, withinMs),
      onRound: ({ number, fault, agreedMs }) =>
        host.say(`round ${number}, ${fault}: ${agreedMs === null ? "never" : `${agreedMs} ms`}`),
    });
    return {
      violations: problemsOf(done, withinMs),
      json: reportOf(done, { seed, withinMs }),
      text: tableOf(done, withinMs),
    };
  },
});
