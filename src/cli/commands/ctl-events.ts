import { sleep } from "../../core/index.ts";
import { defineCommand } from "../command.ts";
import {
  Asking,
  listOf,
  type Members,
  membersOf,
  READ_EXITS,
  readFlags,
  textOf,
} from "../ctl/index.ts";
import { toggle, withDefault } from "../flags.ts";
import { integer } from "../kinds.ts";
import { fitted, printJson } from "../output.ts";

const PAGE = 1_000;
const POLL_MS = 1_000;
/** Members that have a place of their own in a line. */
const PLACED = new Set(["sequence", "time", "kind"]);

export const command = defineCommand({
  description: [
    "Prints what happened to pins, leases, peers and commands since the agent's start, as far as " +
      "it is kept: pins that went for room, leases that expired, holds whose blocks were lost, " +
      "hosts that came, went, failed or sent what they were not asked for.",
  ],
  arguments: {},
  flags: {
    after: withDefault(integer({ min: 0 }), 0, "only those behind this number"),
    follow: toggle("go on until interrupted"),
    ...readFlags,
  },
  examples: [
    { words: "ctl events", what: "a line for each" },
    { words: "ctl events --follow --json", what: "as they come, as JSON" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const { io, clock, interrupt } = rest;
    await using asking = await Asking.open({ name: "ctl events", flags, ...rest });
    for (let after = flags.after; ; ) {
      const answer = await asking.get("/v1/events", { after, limit: PAGE });
      if (!answer.ok) return answer.exit;
      const { next, lost } = membersOf(answer.document);
      if (Number(lost) > 0) io.err.write(`${lost} events are not kept any more\n`);
      const events = listOf(answer.document, "events");
      for (const event of events) {
        if (flags.json) printJson(io, event);
        else io.out.write(`${fitted(io.out, lineOf(event))}\n`);
      }
      if (typeof next === "number") after = next;
      if (events.length < PAGE && !flags.follow) return "ok";
      if (events.length < PAGE) await sleep(clock, POLL_MS, interrupt());
    }
  },
});

/** `41  2026-01-01T00:00:00.000Z  hold_relieved  hold=pin owner=team-a`. */
function lineOf(event: Members): string {
  const members = Object.entries(event).flatMap(([name, value]) =>
    PLACED.has(name) || value === null ? [] : [`${name}=${textOf(value)}`],
  );
  const { sequence, time, kind } = event;
  return [textOf(sequence), textOf(time), textOf(kind), members.join(" ")].join("  ").trimEnd();
}
