import { readFileSync } from "node:fs";
import { messageOf, systemRandom } from "../../src/core/index.ts";
import {
  defineLane,
  flag,
  type LaneResult,
  LaneUsage,
  needNative,
  oneOf,
  seconds,
  text,
  whole,
} from "../support/lane.ts";
import { targetOfFile } from "./findings.ts";
import { fuzz } from "./fuzz.ts";
import { TARGETS } from "./targets.ts";
import { startWatchdog } from "./watchdog.ts";

const NAMES = Object.keys(TARGETS);

export const lane = defineLane({
  help: `
Feeds damaged frames, conversations, manifests, configurations, JSON and trace lines to the code that
reads them. Refusals are correct; any other exception, more than 100 ms for one input (20 ms for
templates and chat bodies), memory that grows without bound and answers that contradict each other
are findings.

  ./dev test:fuzz --seconds 60             all targets, the time shared evenly
  ./dev test:fuzz --target requests        one of ${NAMES.slice(0, 4).join(", ")},
                                           ${NAMES.slice(4).join(", ")}
  ./dev test:fuzz --seed 7                 the same inputs again
  ./dev test:fuzz --replay FILE            one input that failed, from dist/fuzz
  bun --define HEARTH_CANARY=true test/lanes.ts fuzz --seconds 20 --expect-canary
                                           with a planted bug, which must be found

The last line of the output is JSON. Exit codes: 0 nothing was found (or the planted bug was);
1 something was found (or the planted bug was not); 2 wrong usage.
`,
  endsWithJson: true,
  options: {
    seconds: seconds(60),
    seed: whole(0),
    target: oneOf(NAMES),
    replay: text(),
    "expect-canary": flag(),
  },
  async run({ seconds, seed, target, replay, "expect-canary": wantsCanary }, host) {
    await needNative();
    if (replay !== null) return replayed(replay, host.say);
    using watchdog = startWatchdog();
    const result = await fuzz({
      ...{ seconds, watchdog, say: host.say, untilFound: wantsCanary },
      seed: seed ?? systemRandom.u32(),
      targets: target === null ? NAMES : [target],
    });
    const count = result.findings.length;
    const isWrong = count > 0 !== wantsCanary;
    const what = wantsCanary ? "the planted bug was not found" : `${count} findings`;
    return { violations: isWrong ? [what] : [], json: result };
  },
});

/** Runs one saved input. */
async function replayed(file: string, say: (line: string) => void): Promise<LaneResult> {
  const name = targetOfFile(file);
  const make = TARGETS[name];
  if (make === undefined) throw new LaneUsage(`${file}: the name does not begin with a target`);
  const target = make();
  const start = Bun.nanoseconds();
  try {
    await target.run(new Uint8Array(readFileSync(file)), say);
    target.settle?.();
    const ms = Number(((Bun.nanoseconds() - start) / 1e6).toFixed(2));
    return { violations: [], json: { target: name, ms } };
  } catch (thrown) {
    const fault = thrown instanceof Error ? (thrown.stack ?? thrown.message) : messageOf(thrown);
    return { violations: [fault], json: { target: name, fault } };
  } finally {
    await target.close?.();
  }
}
