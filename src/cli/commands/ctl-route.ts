import type { Json } from "../../core/index.ts";
import { HearthError } from "../../core/index.ts";
import { defineCommand } from "../command.ts";
import { Asking, membersOf, READ_EXITS, routerFlags, textOf } from "../ctl/index.ts";
import { optional, required } from "../flags.ts";
import { integer, list, text } from "../kinds.ts";
import { printJson, printRecord } from "../output.ts";

const TOKEN_MAX = 0xffff_ffff;

export const command = defineCommand({
  description: [
    "Asks a router which worker it would choose for a prompt now, and why that one is cheap. " +
      "Nothing is counted: it is a question.",
  ],
  arguments: {},
  flags: {
    ...routerFlags,
    model: required(text("NAME"), "the model"),
    tokens: optional(list(integer({ min: 0, max: TOKEN_MAX })), "the prompt as token ids"),
    hashes: optional(list(text("HASH")), "or as sequence hashes, in decimal or as 0x..."),
    session: optional(text("ID"), "as a request of this session"),
    mode: optional(text("MODE"), "by this mode instead of the router's own"),
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
