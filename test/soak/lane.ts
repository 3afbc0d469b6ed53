import { defineLane, needNative, needPython, progress, text, whole } from "../support/lane.ts";
import { runSoak, violationsOf } from "./soak.ts";

export const lane = defineLane({
  help: `
Starts an agent and clients that are killed, stopped or disconnected at random points, while a reader
verifies every byte that it can get.

  ./dev test:clients                          1,000 clients, about ten seconds
  ./dev test:clients --cycles 10000           the long run
  ./dev test:clients --binary dist/hearth     with the executable instead of the sources
  ./dev test:clients --seed 7                 other lives

From 5,000 clients on the agent's memory is judged, after 8,000 others that do not count; if it seems
to grow, the run continues up to three times as long, to tell a leak from a fluctuation.

The last line of the output is JSON. Exit codes: 0 all is well, or skipped; 1 wrong bytes, leaked
slots or memory, or an answer that must not occur; 2 wrong usage.
`,
  endsWithJson: true,
  options: { cycles: whole(1, 1_000), seed: whole(0, 1), binary: text() },
  async run({ cycles, seed, binary }) {
    const python = needPython();
    if (binary === null) await needNative();
    const show = progress("clients");
    const report = await runSoak({
      ...{ python, binary, cycles, seed: `${seed}` },
      onProgress: (done, residentMb) =>
        show(`${done} of ${cycles}, agent ${residentMb.toFixed(1)} MB`, done === cycles),
    });
    return { violations: violationsOf(report), json: report.figures };
  },
});
