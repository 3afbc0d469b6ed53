import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { statusOfReceipt } from "../../src/api/index.ts";
import {
  COMMAND_TYPES,
  decodeCommand,
  decodeReceipt,
  JSON_TYPE,
  REFUSALS,
  type Receipt,
} from "../../src/control/index.ts";
import { COMMAND_OUTCOMES } from "../../src/core/index.ts";

const ROOT = join(import.meta.dir, "../..");
const page = readFileSync(join(ROOT, "docs/reference/commands.md"), "utf8");

/** Cells of the table rows under a heading, up to the next heading. */
function rowsBelow(heading: string): string[][] {
  const [, section = ""] = page.split(`\n## ${heading}\n`);
  const [own = ""] = section.split("\n## ");
  const rows = own.split("\n").filter((line) => /^\| `/.test(line));
  return rows.map((row) => row.slice(2, -2).split(" | "));
}

const unquoted = (cell: string | undefined) => cell?.replaceAll("`", "") ?? "";

const examples = [...page.matchAll(/^```json\n([\s\S]*?)\n```$/gm)].map((match) => match[1]!);
const isReceipt = (text: string) => text.includes('"status"');

/** The type checker ensures that no field is missing. */
const RECEIPT_MEMBERS = {
  id: true,
  type: true,
  worker_id: true,
  incarnation: true,
  issuer: true,
  status: true,
  reason: true,
  duplicate: true,
  counts: true,
  blocks: true,
  blocks_left_out: true,
  held: true,
  bytes: true,
  durable: true,
  lease_id: true,
  ttl_seconds: true,
  budget: true,
  progress: true,
  elapsed_ms: true,
} as const satisfies Record<keyof Receipt, true>;

describe("docs/reference/commands.md", () => {
  test("has an example of each command, and all decode", () => {
    const commands = examples.filter((text) => !isReceipt(text));
    const types = commands.map((text) => {
      const decoded = decodeCommand(new TextEncoder().encode(text), JSON_TYPE);
      return decoded.ok ? decoded.command.type : text;
    });
    expect(new Set(types)).toEqual(new Set(COMMAND_TYPES));
  });

  test("has receipts with members of a receipt, each behind its command", () => {
    for (const [at, text] of examples.entries()) {
      if (!isReceipt(text)) continue;
      const receipt = decodeReceipt(new TextEncoder().encode(text), JSON_TYPE);
      expect(Object.keys(receipt!).filter((name) => !(name in RECEIPT_MEMBERS))).toEqual([]);
      expect(JSON.parse(examples[at - 1]!).type).toBe(receipt!.type);
    }
    expect(examples.filter(isReceipt).length).toBeGreaterThanOrEqual(COMMAND_TYPES.length);
  });

  test("explains each member of a receipt", () => {
    const named = rowsBelow("Receipts").flatMap(([cell]) => unquoted(cell).split(", "));
    expect(named.sort()).toEqual(Object.keys(RECEIPT_MEMBERS).sort());
  });

  test("has a row for each command, with outcomes that there are", () => {
    const [head = ""] = page.split("\n## ");
    const rows = head.split("\n").filter((line) => /^\| `[A-Z]/.test(line));
    const types = rows.map((row) => /^\| `(\w+)`/.exec(row)![1]!);
    expect(new Set<string>(types)).toEqual(new Set<string>(COMMAND_TYPES));
    for (const row of rows) {
      const outcomes = row.split(" | ").at(-2)!.split(", ").map(unquoted);
      const known: readonly string[] = COMMAND_OUTCOMES;
      expect(outcomes.filter((outcome) => !known.includes(outcome))).toEqual([]);
    }
  });

  test("has the refusals that there are, in the code's own words", () => {
    const rows = rowsBelow("Why a command is refused");
    const wanted = Object.entries(REFUSALS).map(([word, { meaning, retry }]) => {
      const receipt = { status: "rejected", reason: `${word}: ` } as Receipt;
      return [`\`${word}\``, meaning, retry ? "yes" : "no", `${statusOfReceipt(receipt)}`];
    });
    expect(rows).toEqual(wanted);
  });

  test("has the reasons that blocks have", () => {
    const rows = rowsBelow("Why a block is not done").map(([cell]) => unquoted(cell));
    expect(rows).toEqual(reasonsInSources());
  });
});

/** Reasons that callers exclude before they send a command. */
const NEVER_TOLD: ReadonlySet<string> = new Set(["exists", "invalid", "missing"]);

/** First words of reasons such as "budget: ..." in the sources. */
function reasonsInSources(): string[] {
  const folders = ["src/store/lifecycle", "src/store/pins"].flatMap((folder) =>
    readdirSync(join(ROOT, folder)).map((name) => join(folder, name)),
  );
  const control = ["decode-command", "command-memory"].map((name) => `src/control/${name}.ts`);
  const words = [...folders, ...control].flatMap((file) => {
    const source = readFileSync(join(ROOT, file), "utf8");
    return [...source.matchAll(/["`]([a-z_]+): /g)].map((match) => match[1]!);
  });
  return [...new Set(words)].filter((word) => !NEVER_TOLD.has(word)).sort();
}
