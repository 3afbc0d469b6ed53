import { BLOCK_REASONS, REFUSALS } from "../control/index.ts";

/** The reference page of what receipts of commands may say, in Markdown. */
export function renderCommandReference(): string {
  const lines = [
    "# Receipts of commands",
    "",
    "`reason` begins with one of these words, a colon behind it. They are stable.",
    "",
    "## Why a command is refused",
    "",
    "Where `status` is `rejected`: nothing changed. *Again* says whether the same command may be",
    "taken a moment later.",
    "",
    "| word | when | again |",
    "|---|---|---|",
    ...Object.entries(REFUSALS).map(
      ([word, { meaning, retry }]) => `| \`${word}\` | ${meaning} | ${retry ? "yes" : "no"} |`,
    ),
    "",
    "## Why a block is not done",
    "",
    "Also of a receipt itself, where its command names no block.",
    "",
    "| word | outcome | when |",
    "|---|---|---|",
    ...Object.entries(BLOCK_REASONS).map(([word, { outcomes, meaning }]) => {
      const cells = [`\`${word}\``, outcomes.join(", "), meaning];
      return `| ${cells.join(" | ").replace("|  |", "| |")} |`;
    }),
  ];
  return `${lines.join("\n")}\n`;
}
