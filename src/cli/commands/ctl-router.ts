import { HearthError, integerKind, type Json, listKind, textKind } from "../../core/index.ts";
import { defineCommand, nameKind, optional, required, requiredArgument } from "../command.ts";
import { Asking, READ_EXITS } from "../ctl/ask.ts";
import { routerFlags } from "../ctl/connect.ts";
import { listOf, type Members, membersOf, textOf } from "../ctl/documents.ts";
import { type Io, printJson, printRecord, printRows } from "../terminal.ts";

export const ctlLoadsCommand = defineCommand({
  description: [
    "Lists the workers of a router: state of the connection to their engines, number of known " +
      "blocks, and load.",
    "known: whether the router knows all blocks of the worker. gpu, ram, ssd: blocks on each " +
      "tier. Lines below the table report problems with the events of an engine.",
  ],
  arguments: {},
  flags: { ...routerFlags, model: optional(nameKind, "only workers of this model") },
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
      printRows(io, workers.map(loadRow), false);
      for (const line of workers.flatMap(problemsOf)) io.out.write(`${line}\n`);
    }
    return "ok";
  },
});

function loadRow(worker: Members) {
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
    problems.push(`${name}: its API at ${textOf(worker.url)} has not reported its model`);
  }
  const { block_tokens: engine, configured_block_tokens: configured } = events;
  if (typeof engine === "number" && typeof configured === "number" && engine !== configured) {
    problems.push(
      `${name}: block_tokens is ${configured}, its engine's blocks have ${engine} (which is used)`,
    );
  }
  if (events.reached === false) {
    const since = events.ever_reached === true ? "is unreachable" : "was never reached";
    problems.push(`${name}: the engine's events at ${textOf(events.endpoint)}: it ${since}`);
  }
  const dropped = Object.entries(membersOf(events.dropped)).map(
    ([reason, count]) => `${reason} ${textOf(count)}`,
  );
  if (dropped.length > 0) problems.push(`${name}: dropped events: ${dropped.join(", ")}`);
  return problems;
}

const TOKEN_MAX = 0xffff_ffff;

export const ctlRouteCommand = defineCommand({
  description: [
    "Queries which worker a router would choose for a prompt now, with the terms of its cost. " +
      "The query does not count as load.",
  ],
  arguments: {},
  flags: {
    ...routerFlags,
    model: required(nameKind, "the model"),
    tokens: optional(listKind(integerKind({ min: 0, max: TOKEN_MAX })), "the prompt as token ids"),
    hashes: optional(listKind(textKind("HASH")), "or as sequence hashes, in decimal or as 0x..."),
    session: optional(textKind("ID"), "session of the request"),
    mode: optional(textKind("MODE"), "mode instead of the router's"),
  },
  examples: [
    { words: "ctl route --model m --tokens 1,2,3,4", what: "a prompt of four tokens" },
    { words: "ctl route --model m --hashes 0x7b0bf7bf7fd01682", what: "a prompt of one block" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const { io } = rest;
    const { model, tokens, hashes, session, mode } = flags;
    if ((tokens === null) === (hashes === null)) {
      throw new HearthError("USAGE", "a prompt is --tokens or --hashes");
    }
    await using asking = await Asking.open({ name: "ctl route", flags, ...rest });
    const body: { [name: string]: Json } = { model };
    if (tokens !== null) body.tokens = [...tokens];
    if (hashes !== null) body.block_hashes = [...hashes];
    if (session !== null) body.session_id = session;
    if (mode !== null) body.overrides = { mode };
    const answer = await asking.post("/v1/route", body);
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(io, answer.document);
    else {
      const { terms, prefill, request_id: _id, ...decision } = membersOf(answer.document);
      const place = prefill === null ? {} : { prefill: textOf(membersOf(prefill).worker) };
      const all = { ...decision, ...place, ...membersOf(terms) };
      const shown = Object.entries(all).map(([name, value]) => [name, textOf(value)]);
      printRecord(io, Object.fromEntries(shown), false);
    }
    return "ok";
  },
});

export const ctlExplainRouteCommand = defineCommand({
  description: [
    "Explains a decision of a router: every candidate with the terms of its cost, the cheapest " +
      "first, excluded workers with the reason, the random draw, and the actions of policies.",
  ],
  arguments: { request: requiredArgument(textKind("ID"), "id of a routed request") },
  flags: routerFlags,
  examples: [
    { words: "ctl explain-route req-1", what: "one of the latest decisions of this host's router" },
    { words: "ctl explain-route req-1 --json", what: "as the router answers" },
  ],
  exits: READ_EXITS,
  async run({ flags, arguments: { request }, ...rest }) {
    const { io } = rest;
    await using asking = await Asking.open({ name: "ctl explain-route", flags, ...rest });
    const answer = await asking.get(`/v1/explain/${encodeURIComponent(request)}`);
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(io, answer.document);
    else printDecision(io, answer.document);
    return "ok";
  },
});

function printDecision(io: Io, document: Json): void {
  const { model, mode, prompt_tokens: tokens, chosen, decided_by: by, draw } = membersOf(document);
  const { queued_ms: queued, exact_blocks: exact, prompt_blocks: blocks } = membersOf(document);
  const drawn = draw === null ? "" : `, drawn ${textOf(draw)}`;
  const place = chosen === null ? "nobody" : placeOf(membersOf(chosen));
  io.out.write(
    `${place} by ${textOf(by)} (${textOf(mode)}${drawn})\n` +
      `${textOf(model)}, ${textOf(tokens)} tokens, ${textOf(blocks)} blocks of which ` +
      `${textOf(exact)} are known exactly, queued for ${textOf(queued)} ms\n`,
  );
  const candidates = listOf(document, "candidates").map(candidateRow);
  printRows(
    io,
    candidates.sort((a, b) => Number(a.cost) - Number(b.cost)),
    false,
  );
  for (const one of listOf(document, "filtered")) {
    io.out.write(`not ${placeOf(one)}: ${textOf(one.reason)}\n`);
  }
  for (const { policy, command: sent, worker, dry_run: isDry, outcome } of listOf(
    document,
    "actions",
  )) {
    const how = isDry === true ? "would send" : "sent";
    const came = outcome === null ? "no receipt yet" : textOf(outcome);
    io.out.write(`${textOf(policy)} ${how} ${textOf(sent)} to ${textOf(worker)}: ${came}\n`);
  }
}

function placeOf({ worker, rank }: Members): string {
  return rank === 0 ? textOf(worker) : `${textOf(worker)} rank ${textOf(rank)}`;
}

function candidateRow(candidate: Members) {
  const terms = membersOf(candidate.terms);
  const shown = (name: string) => textOf(terms[name]);
  return {
    worker: placeOf(candidate),
    cost: shown("cost"),
    chance: Number(candidate.probability ?? 0),
    device: shown("device_blocks"),
    host: shown("host_blocks"),
    disk: shown("disk_blocks"),
    prefill: shown("raw_prefill_tokens"),
    active: shown("active_blocks"),
    more: shown("additional_blocks"),
    requests: shown("active_requests"),
  };
}
