import { defineCommand } from "../command.ts";
import {
  Asking,
  listOf,
  type Members,
  membersOf,
  READ_EXITS,
  routerFlags,
  textOf,
} from "../ctl/index.ts";
import { optional } from "../flags.ts";
import { text } from "../kinds.ts";
import { printJson, printRows } from "../output.ts";

export const command = defineCommand({
  description: [
    "Lists the workers that a router knows: whether it knows what they hold, and what it counts " +
      "them to be at work on.",
  ],
  arguments: {},
  flags: { ...routerFlags, model: optional(text("NAME"), "workers of this model alone") },
  examples: [
    { words: "ctl loads", what: "the router of this host" },
    { words: "ctl loads --api http://10.0.0.10:7181 --token-file token", what: "another one" },
    { words: "ctl loads --json", what: "as the router answers, with key spaces" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const { io } = rest;
    await using asking = await Asking.open({ name: "ctl loads", flags, ...rest });
    const query = flags.model === null ? {} : { model: flags.model };
    const answer = await asking.get("/v1/workers", query);
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(io, answer.document);
    else printRows(io, listOf(answer.document, "workers").map(rowOf), false);
    return "ok";
  },
});

function rowOf(worker: Members) {
  const load = membersOf(worker.load);
  return {
    worker: textOf(worker.worker),
    rank: textOf(worker.rank),
    model: textOf(worker.model),
    role: textOf(worker.role),
    state: textOf(worker.state),
    known: worker.known === true ? "yes" : "no",
    requests: textOf(load.active_requests),
    prefill: textOf(load.active_prefill_tokens),
    blocks: textOf(load.active_blocks),
    of: textOf(worker.total_blocks),
  };
}
