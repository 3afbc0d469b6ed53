import { METRICS } from "../../api/index.ts";
import { renderConfigReference, renderRouterReference } from "../../config/index.ts";
import { BLOCK_REASONS, REFUSALS } from "../../control/index.ts";
import { choiceKind, ERROR_CODES, type ErrorCode } from "../../core/index.ts";
import { renderHealthReference, renderMetricsReference } from "../../observability/index.ts";
import { defineCommand, EXIT_CODES, EXIT_OF_ERROR, requiredArgument } from "../command.ts";

const PAGES = {
  commands: renderCommandReference,
  config: renderConfigReference,
  errors: renderErrorReference,
  health: renderHealthReference,
  metrics: () => renderMetricsReference(METRICS),
  router: renderRouterReference,
} as const;

const TOPICS = Object.keys(PAGES) as (keyof typeof PAGES)[];

export const command = defineCommand({
  description: ["Prints a reference page, generated from the tables of the program."],
  arguments: {
    topic: requiredArgument(
      choiceKind(TOPICS),
      "reasons in receipts, keys of an agent's or a router's file, error and exit codes, health " +
        "codes, or metrics",
    ),
  },
  flags: {},
  examples: [
    { words: "reference config", what: "every key of the configuration file" },
    { words: "reference health", what: "health problems of an agent, and their fixes" },
    { words: "reference metrics", what: "every metric, its type and its labels" },
  ],
  exits: [],
  async run({ arguments: { topic }, io }) {
    const page = PAGES[topic]();
    io.out.write(page.endsWith("\n") ? page : `${page}\n`);
    return "ok";
  },
});

/** Renders the reference page of the reasons in receipts, in Markdown. */
function renderCommandReference(): string {
  const lines = [
    "# Receipts of commands",
    "",
    "`reason` begins with one of these words and a colon. They are stable.",
    "",
    "## Why a command is refused",
    "",
    "If `status` is `rejected`, nothing changed. *Again* states whether the same command may be",
    "accepted later.",
    "",
    "| word | when | again |",
    "|---|---|---|",
    ...Object.entries(REFUSALS).map(
      ([word, { meaning, retry }]) => `| \`${word}\` | ${meaning} | ${retry ? "yes" : "no"} |`,
    ),
    "",
    "## Why a block is not done",
    "",
    "Also the reason of a receipt whose command names no block.",
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

/** Renders the reference page of error codes and exit codes, in Markdown. */
function renderErrorReference(): string {
  const lines = [
    "# Errors",
    "",
    "Log lines, HTTP answers and messages carry these codes. They are stable. *Again* says whether",
    "the same request may succeed later; *exit* is how a command ends that meets the error.",
    "",
    "| code | meaning | again | exit |",
    "|---|---|---|---|",
    ...(Object.keys(ERROR_CODES) as ErrorCode[]).map((name) => {
      const { meaning, retryable } = ERROR_CODES[name];
      const { code } = EXIT_CODES[EXIT_OF_ERROR[name]];
      return `| \`${name}\` | ${meaning} | ${retryable ? "yes" : "no"} | ${code} |`;
    }),
    "",
    "## Exit codes",
    "",
    "| exit | meaning |",
    "|---|---|",
    ...Object.values(EXIT_CODES).map(({ code, meaning }) => `| ${code} | ${meaning} |`),
  ];
  return `${lines.join("\n")}\n`;
}
