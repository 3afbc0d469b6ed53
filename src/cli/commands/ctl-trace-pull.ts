import { newCommandId, warm } from "../../control/client/index.ts";
import type { Json } from "../../core/index.ts";
import { defineCommand } from "../command.ts";
import {
  Asking,
  blockName,
  bytesOf,
  CTL_EXITS,
  listOf,
  type Members,
  membersOf,
  nameOf,
  readFlags,
  textOf,
} from "../ctl/index.ts";
import { repeated, requiredArgument, toggle, withDefault } from "../flags.ts";
import type { Io } from "../io.ts";
import { integer, text } from "../kinds.ts";
import { printJson, printRows } from "../output.ts";

export const command = defineCommand({
  description: [
    "Shows step by step what happened when a block was last pulled from another host: who was " +
      "believed to have it, who was asked over what, what came and when. With --now the block is " +
      "warmed first, from wherever it is.",
    "An agent remembers what became of the latest 4,096 blocks that it pulled, or tried to. A " +
      "block that is in RAM is not pulled.",
  ],
  arguments: { block: requiredArgument(blockName, "an engine's hash, a page key or a digest") },
  flags: {
    now: toggle("warm the block now, and show that"),
    source: repeated(text("WORKER"), "with --now: a worker that may have it"),
    limit: withDefault(integer({ min: 1, max: 1_000 }), 1, "pulls at most, the latest first"),
    ...readFlags,
  },
  examples: [
    { words: "ctl trace-pull 1234567890", what: "the last pull of this block" },
    { words: "ctl trace-pull --now --source gpu-02 1234567890", what: "pull it now" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { block }, ...rest }) {
    const { io } = rest;
    await using asking = await Asking.open({ name: "ctl trace-pull", flags, ...rest });
    if (flags.now) {
      const sources = flags.source.length === 0 ? {} : { sources: flags.source };
      const wish = { ...warm([block], sources), id: newCommandId() };
      const warmed = await asking.post("/v1/commands", wish as unknown as Json);
      if (!warmed.ok) return warmed.exit;
      io.err.write(`hearth ctl trace-pull: ${outcomeOf(warmed.document)}\n`);
    }
    const answer = await asking.get("/v1/pulls", { key: String(block), limit: flags.limit });
    if (!answer.ok) return answer.exit;
    const pulls = listOf(answer.document, "pulls");
    for (const pull of pulls) {
      if (flags.json) printJson(io, pull);
      else printPull(io, pull);
    }
    if (pulls.length > 0) return "ok";
    io.err.write(`hearth ctl trace-pull: no pull of ${nameOf(String(block))} is known here\n`);
    return "partly";
  },
});

/** `the block was warmed: done`. */
function outcomeOf(receipt: Json): string {
  const [block] = listOf(receipt, "blocks");
  const { outcome, reason } = membersOf(block ?? receipt);
  const why = typeof reason === "string" ? `, ${textOf(reason)}` : "";
  const here = outcome === "already" ? " (it is here: nothing had to be pulled)" : "";
  return `the block was warmed: ${textOf(outcome)}${why}${here}`;
}

function printPull(io: Io, pull: Members): void {
  const { key, layer, priority, started, outcome, bytes } = pull;
  const all = layer === 4_294_967_295 ? "" : `/${textOf(layer)}`;
  const head = [textOf(started), `${nameOf(key)}${all}`, `for ${textOf(priority)}`];
  const end = outcome === null ? "under way" : `${textOf(outcome)}, ${bytesOf(bytes)}`;
  io.out.write(`${head.join("  ")}: ${end}\n`);
  printRows(
    io,
    listOf(pull, "steps").map((step) => ({
      ms: typeof step.ms === "number" ? step.ms.toFixed(2).padStart(9) : "-",
      peer: textOf(step.peer),
      transport: textOf(step.transport),
      bytes: bytesOf(step.bytes),
      what: textOf(step.what),
    })),
    false,
  );
}
