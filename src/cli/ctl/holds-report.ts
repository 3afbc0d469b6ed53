import type { ExitName } from "../exit-codes.ts";
import { optional, withDefault } from "../flags.ts";
import { integer, text } from "../kinds.ts";
import { printJson, printRows, type Row } from "../output.ts";
import { type AskContext, type AskFlags, Asking, readPages } from "./ask.ts";
import { bytesOf, listOf, type Members, membersOf, secondsOf, textOf } from "./documents.ts";

export const holdFlags = {
  owner: optional(text("NAME"), "those of this owner alone"),
  limit: withDefault(integer({ min: 1, max: 10_000_000 }), 1_000, "entries at most"),
  after: optional(integer({ min: 0 }), "go on behind this id"),
};

interface HoldFlags extends AskFlags {
  readonly owner: string | null;
  readonly limit: number;
  readonly after: number | null;
}

export interface HoldList {
  readonly path: string;
  /** Name of the list in an answer. */
  readonly list: string;
  readonly kind: string | null;
}

/** A row for each hold, then the budget; with `--json` what the agent answered, a line a page. */
export async function printHolds(
  context: AskContext & { readonly flags: HoldFlags },
  { path, list, kind }: HoldList,
): Promise<ExitName> {
  const { io, flags } = context;
  const { owner, limit, after, json } = flags;
  await using asking = await Asking.open(context);
  const rows: Row[] = [];
  let budget: Members = {};
  const pages = await readPages(
    asking,
    { path, query: { owner, kind }, after, limit, list },
    (page) => {
      if (json) printJson(io, page);
      rows.push(...listOf(page, list).map(holdRow));
      budget = membersOf(membersOf(page).budget);
    },
  );
  if (!pages.ok) return pages.exit;
  if (json) return "ok";
  printRows(io, rows, false);
  if (rows.length === 0) io.err.write(`there are no ${list}\n`);
  if (pages.next !== null) io.err.write(`there are more: --after ${pages.next}\n`);
  io.out.write(budgetLines(budget));
  return "ok";
}

function holdRow(hold: Members): Row {
  const { id, kind, owner, name, blocks, bytes, remaining_seconds, priority, priority_now } = hold;
  const isSoft = kind === "retain";
  return {
    id: textOf(id),
    ...(kind === "lease" ? { lease: textOf(name) } : {}),
    owner: textOf(owner),
    blocks: textOf(blocks),
    bytes: bytesOf(bytes),
    left: secondsOf(remaining_seconds),
    ...(isSoft
      ? {
          priority: textOf(priority),
          now: decimalOf(priority_now),
          halves: secondsOf(hold.retain_seconds),
        }
      : {}),
  };
}

/** `12.5`: a priority that fades has many digits, and none of them matters. */
function decimalOf(value: unknown): string {
  return typeof value === "number" ? String(Number(value.toFixed(1))) : textOf(value);
}

function budgetLines(budget: Members): string {
  const line = (who: string, used: unknown, all: unknown) =>
    `${who.padEnd(6)} ${bytesOf(used)} of ${bytesOf(all)} that pins and leases may keep\n`;
  const { host_used_bytes, host_budget_bytes, owner_used_bytes, owner_budget_bytes } = budget;
  if (host_budget_bytes === undefined) return "";
  const owner =
    owner_budget_bytes === undefined ? "" : line("owner", owner_used_bytes, owner_budget_bytes);
  return `${line("host", host_used_bytes, host_budget_bytes)}${owner}`;
}
