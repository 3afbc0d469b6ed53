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
    "Lists the workers that a router knows: whether their engines are reached, how many blocks " +
      "they are known to hold, and what the router counts them to be at work on.",
    "known: whether all that the worker holds is known. gpu, ram, ssd: blocks that it holds. " +
      "Lines below the table name what is wrong with the events of an engine.",
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
    else {
      const workers = listOf(answer.document, "workers");
      printRows(io, workers.map(rowOf), false);
      for (const line of workers.flatMap(problemsOf)) io.out.write(`${line}\n`);
    }
    return "ok";
  },
});

function rowOf(worker: Members) {
  const load = membersOf(worker.load);
  const held = membersOf(worker.held_blocks);
  return {
    worker: textOf(worker.worker),
    rank: textOf(worker.rank),
    model: textOf(worker.model),
    role: textOf(worker.role),
    state: textOf(worker.state),
    known: worker.known === true ? "yes" : "no",
    gpu: textOf(held.device),
    ram: textOf(held.host),
    ssd: textOf(held.disk),
    requests: textOf(load.active_requests),
    prefill: textOf(load.active_prefill_tokens),
    blocks: textOf(load.active_blocks),
    of: textOf(worker.total_blocks),
  };
}

function problemsOf(worker: Members): string[] {
  const events = membersOf(worker.events);
  const name = `${textOf(worker.worker)}/${textOf(worker.rank)}`;
  const problems: string[] = [];
  if (worker.model === null) {
    problems.push(`${name}: its API at ${textOf(worker.url)} has not said which model it serves`);
  }
  const { block_tokens: engine, configured_block_tokens: configured } = events;
  if (typeof engine === "number" && typeof configured === "number" && engine !== configured) {
    problems.push(
      `${name}: block_tokens is ${configured}, its engine's blocks have ${engine} (which is used)`,
    );
  }
  if (events.reached === false) {
    const since = events.ever_reached === true ? "is not reached now" : "was never reached";
    problems.push(`${name}: the engine's events at ${textOf(events.endpoint)}: it ${since}`);
  }
  const dropped = Object.entries(membersOf(events.dropped)).map(
    ([reason, count]) => `${reason} ${textOf(count)}`,
  );
  if (dropped.length > 0) problems.push(`${name}: events left out: ${dropped.join(", ")}`);
  return problems;
}
