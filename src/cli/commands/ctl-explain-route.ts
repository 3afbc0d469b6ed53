import type { Json } from "../../core/index.ts";
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
import { requiredArgument } from "../flags.ts";
import type { Io } from "../io.ts";
import { text } from "../kinds.ts";
import { printJson, printRows } from "../output.ts";

export const command = defineCommand({
  description: [
    "Tells how a router came to a decision: every candidate with the terms of its cost, the " +
      "cheapest first, those that were none with the reason, the draw, and what policies did.",
  ],
  arguments: { request: requiredArgument(text("ID"), "the request id that was routed") },
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
    else printExplanation(io, answer.document);
    return "ok";
  },
});

function printExplanation(io: Io, document: Json): void {
  const { model, mode, prompt_tokens: tokens, chosen, decided_by: by, draw } = membersOf(document);
  const { queued_ms: queued, exact_blocks: exact, prompt_blocks: blocks } = membersOf(document);
  const drawn = draw === null ? "" : `, drawn ${textOf(draw)}`;
  const place = chosen === null ? "nobody" : placeOf(membersOf(chosen));
  io.out.write(
    `${place} by ${textOf(by)} (${textOf(mode)}${drawn})\n` +
      `${textOf(model)}, ${textOf(tokens)} tokens, ${textOf(blocks)} blocks of which ` +
      `${textOf(exact)} are known exactly, queued for ${textOf(queued)} ms\n`,
  );
  const candidates = listOf(document, "candidates").map(rowOf);
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

function rowOf(candidate: Members) {
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
